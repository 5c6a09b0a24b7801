"""Data travel to the machines, and what workers save comes home."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab_machines import lab, run_in
from ssh_runs import Bench

pytestmark = pytest.mark.slow
__all__ = ["lab"]
READS = """
from pathlib import Path
import torch
from torch import nn
from safetensors.torch import save_file
import phalanx

model = nn.Linear(4, 2)
train = torch.randn(64, 4), torch.randint(2, (64,))  # before join, after which workers draw apart
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in run.epochs(1):
    for x, y in run.batches(train, batch=32):
        run.backward(nn.functional.cross_entropy(model(x), y))
        run.step()
assert [path.read_bytes() for path in Path(run.data).iterdir()] == [b"data"]
save_file(dict(model.state_dict()), Path(run.folder) / f"weights-{run.rank}.safetensors")
Path(f"remark {run.rank}.txt").write_text("kept where it is")
"""


@pytest.mark.machines
def test_weights_come_home_and_other_files_are_kept(bench: Bench, tmp_path: Path) -> None:
    (bench.project / "reads.py").write_text(READS)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "part").write_bytes(b"data")
    words = ["run", "reads.py", "--pool", str(bench.pool), "--data", str(tmp_path / "small")]
    ended = bench.do(*words)
    assert ended.code == 0, ended.text
    run = bench.latest()
    weights = [run / "files" / f"weights-{rank}.safetensors" for rank in (0, 1)]
    assert all(path.stat().st_size > 40 for path in weights)
    assert weights[0].read_bytes() == weights[1].read_bytes(), "all workers end with one model"
    for rank, machine in enumerate(("m1", "m2")):
        told = rf"{machine} still has 1 new file in (\S+): remark {rank}\.txt"
        found = re.search(told, ended.words)
        assert found, ended.words
        path = f"{found[1]}/remark {rank}.txt"
        assert run_in(bench.lab, machine, ["cat", path]) == "kept where it is"
        left = run_in(bench.lab, machine, ["find", "/run/home/.cache/phalanx/runs", "-type", "f"])
        assert "weights" not in left, "what came home is not kept twice"
