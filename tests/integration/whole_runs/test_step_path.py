"""How far one step of an unchanged script goes through the source: files it enters, calls it makes.

A step that few files and few calls make is one that can be read. Counted in the middle of a pass,
where nothing is set up any more; every eighth step may do more than the others.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import phalanx

SCRIPT = """
import collections, json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(8192, 20), torch.randint(0, 4, (8192,)))
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls, files, step = 0, collections.Counter(), 0

def count(frame, event, argument):
    global calls
    path = frame.f_code.co_filename
    if event == "call" and "/src/phalanx/" in path:
        calls += 1
        files[path.split("/src/phalanx/")[1] + " " + frame.f_code.co_qualname] += 1

for epoch in range(1):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        step += 1
        if step == 120:
            sys.setprofile(count)
        if step == 152:
            sys.setprofile(None)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
if os.environ.get("PHALANX_RANK") == "0":
    json.dump([calls / 32, files], open(sys.argv[1], "w"))
"""
STEPS = 32


@pytest.mark.parametrize(
    ("strategy", "most_files", "most_calls"), [("allreduce", 48, 200), ("async", 46, 210)]
)
def test_a_step_enters_few_files_and_makes_few_calls(
    tmp_path: Path, strategy: str, most_files: int, most_calls: int
) -> None:
    script, counted = tmp_path / "train.py", tmp_path / "counted.json"
    script.write_text(SCRIPT)
    ended = phalanx(
        "run", str(script), "--workers", "2", "--strategy", strategy, "--view", "parts",
        "--", str(counted), cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    calls, found = json.loads(counted.read_text())
    every = {name.split()[0] for name, n in found.items() if n >= STEPS // 8}
    said = [f"{n / STEPS:6.2f} {name}" for name, n in sorted(found.items())]
    print(f"{calls} calls, {len(every)} files\n", "\n".join(said))
    assert calls <= most_calls, said
    assert len(every) <= most_files, sorted(every)
