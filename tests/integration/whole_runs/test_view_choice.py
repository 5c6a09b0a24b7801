"""``--view auto``: each worker gets its part of a batch where sharing out calls would not pay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import TORCH, phalanx, succeeds

TWO = ("--workers", "2", "--strategy", "allreduce:shares=equal")
SCRIPT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
    def forward(self, x):
        if sys.argv[1] == "model":
            time.sleep(0.005 * len(x))
        return self.inner(x)

model = Net().double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(100, 6).double(), torch.randn(100, 3).double())
open("began", "a").write("once ")
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=20, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if sys.argv[1] == "noise":
            torch.randn(3)
        if sys.argv[1] != "model":
            time.sleep(0.001 * len(x))
        loss.backward()
        optimizer.step()
        open("steps", "a").write(f"{len(x)} ")
        if sys.argv[1] == "fails" and epoch == 1 and not pathlib.Path("failed").exists():
            open("failed", "w").close()
            raise SystemExit("failed as it was to")
torch.save(model.state_dict(), "weights.pt")
"""


@pytest.mark.parametrize(("busy", "parts"), [("loop", True), ("model", False), ("noise", False)])
def test_the_view_that_pays_is_chosen(tmp_path: Path, busy: str, parts: bool) -> None:
    script, alone = tmp_path / "train.py", tmp_path / "alone"
    script.write_text(TORCH + SCRIPT)
    alone.mkdir()
    subprocess.run([sys.executable, str(script), busy], cwd=alone, check=True, timeout=240)
    ended = succeeds("run", str(script), *TWO, "--", busy, cwd=tmp_path)
    assert ("view parts: " in ended.stdout + ended.stderr) is parts
    found, wanted = (torch.load(f / "weights.pt") for f in (tmp_path, alone))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)
    # What the child of the trial did to the script's files has gone with it.
    assert (tmp_path / "began").read_text() == "once "
    assert (tmp_path / "steps").read_text() == ("10 " if parts else "20 ") * 10


def test_a_resumed_run_keeps_its_view(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCH + SCRIPT)
    run = ["run", str(script), *TWO, "--checkpoint-every", "1"]
    failed = phalanx(*run, "--", "fails", cwd=tmp_path)
    assert failed.returncode != 0
    assert "view parts: " in failed.stdout + failed.stderr
    succeeds("resume", str(next(tmp_path.glob("runs/*"))), cwd=tmp_path)
    assert set((tmp_path / "steps").read_text().split()) == {"10"}
