"""How far one step of an unchanged script goes through the source: files it enters, calls it makes.

A step that few files and few calls make is one that can be read. Counted in the middle of a pass,
where nothing is set up any more: the shortest of 120 steps, in which nothing falls due by the time.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from commands import TORCH, succeeds

SCRIPT = """
data = TensorDataset(torch.randn(8192, 20), torch.randint(0, 4, (8192,)))
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps, called = [], []

def note(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and "/src/phalanx/" in path:
        called.append(path.split("/src/phalanx/")[1] + " " + frame.f_code.co_qualname)

for number, (x, y) in enumerate(DataLoader(data, batch_size=16, shuffle=True)):
    if number == 60:
        sys.setprofile(note)
    if 60 < number <= 180:
        steps.append(called[:])
        called.clear()
    if number == 180:
        sys.setprofile(None)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
if os.environ.get("PHALANX_RANK") == "0":
    json.dump(steps, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize(
    ("strategy", "most_files", "most_calls"), [("allreduce", 24, 110), ("async", 26, 120)]
)
def test_a_step_enters_few_files_and_makes_few_calls(
    tmp_path: Path, strategy: str, most_files: int, most_calls: int
) -> None:
    script, counted = tmp_path / "train.py", tmp_path / "counted.json"
    script.write_text(TORCH + SCRIPT)
    succeeds(
        "run", str(script), "--workers", "2", "--strategy", strategy, "--view", "parts",
        "--", str(counted), cwd=tmp_path,
    )  # fmt: skip
    usual: list[str] = min(json.loads(counted.read_text()), key=len)
    files = {name.split()[0] for name in usual}
    said = [f"{n} {name}" for name, n in sorted(Counter(usual).items())]
    print(f"{len(usual)} calls, {len(files)} files\n", "\n".join(said))
    assert len(usual) <= most_calls, said
    assert len(files) <= most_files, sorted(files)
