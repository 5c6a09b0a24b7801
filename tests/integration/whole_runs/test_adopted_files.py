"""The files of an adopted script are those of the first worker, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from commands import interrupt, last_json, phalanx, start, succeeds, until

SCRIPT = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if os.path.exists("out"):
    sys.exit("the folder out is there already")
os.mkdir("out")
with open("out/config.json", "w") as f:
    json.dump({"rate": 0.1}, f)

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
path, best = "out/best.pt", float("inf")
for epoch in range(3):
    for a, b in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x), data.tensors[1]).item()
    if loss < best:
        best = loss
        with open(path, "wb") as f:
            torch.save(model.state_dict(), f)
    with open("out/log.txt", "a") as f:
        f.write(f"epoch {epoch} loss {loss:.6f}\\n")
    print(f"epoch {epoch} loss {loss:.6f}", flush=True)

model.load_state_dict(torch.load(path))
assert len(open("out/log.txt").readlines()) == 3
assert json.load(open("out/config.json")) == {"rate": 0.1}
with open("out/result.json", "w") as f:
    json.dump({"best": best, "files": sorted(os.listdir("out"))}, f)
print("ended", os.environ.get("WANDB_MODE"))
"""


@pytest.mark.parametrize("launcher", ["local"])
def test_real_files_are_those_of_the_first_worker(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ended = succeeds(
        "run", "train.py", "--workers", "2", "--launcher", launcher, "--json",
        cwd=tmp_path, TMPDIR=str(temporary),
    )  # fmt: skip
    out = tmp_path / "out"
    names = ["best.pt", "config.json", "log.txt", "result.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    lines = (out / "log.txt").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", str(epoch)] for epoch in range(3)]
    assert set(torch.load(out / "best.pt")) == {"weight", "bias"}
    result = json.loads((out / "result.json").read_text())
    assert result["files"] == names
    logs = tmp_path / "runs" / last_json(ended.stdout)["run"] / "logs"
    first, second = [(logs / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert "ended" in first and "ended" in second
    assert "phalanx: the files" not in first and second.count("phalanx: the files") == 1
    assert ("ended disabled" in second) == (launcher == "local") and "disabled" not in first
    assert _left(tmp_path, temporary) == []


def _left(*folders: Path) -> list[Path]:
    names = ("**/phalanx-files-*", "**/private-*")
    return [path for folder in folders for name in names for path in folder.glob(name)]


FAILS = """
import os, time
import torch

if os.environ["PHALANX_RANK"] != "{rank}":
    time.sleep(60)
torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
try:
    open("first")
except OSError:
    open("no folder/second", "{mode}")
"""


@pytest.mark.parametrize(("rank", "mode"), [pytest.param(0, "w", marks=pytest.mark.slow), (1, "r")])
def test_a_traceback_is_the_scripts_own(tmp_path: Path, rank: int, mode: str) -> None:
    (tmp_path / "train.py").write_text(FAILS.format(rank=rank, mode=mode))
    ended = phalanx("run", "train.py", "--workers", "2", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert ended.returncode == 1
    assert _left(tmp_path) == []  # also of a worker that had to be killed
    assert ended.stderr.count("Traceback (most recent call last)") == 2  # one during the other
    assert 'train.py", line 11' in ended.stderr and "adopt" not in ended.stderr


SLEEPS = """
import signal, time
import torch
from torch.utils.data import DataLoader, Dataset

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so it has to be killed

class Slow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        open("busy.txt", "w").write("busy")
        print("busy", flush=True)
        time.sleep(60)

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(Slow(), batch_size=2):
    model(x).mean().backward()
    optimizer.step()
"""


def test_an_interrupted_run_leaves_no_private_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "train.py").write_text(SLEEPS)
    run = start("run", "train.py", "--workers", "2", "--loss", "mean", cwd=tmp_path)
    logs = tmp_path / "runs"
    until(lambda: sum("busy" in log.read_text() for log in logs.glob("*/logs/rank-*.log")) == 2)
    assert _left(tmp_path) != []
    interrupt(run)
    assert run.returncode == 130
    assert _left(tmp_path) == []
