"""``run --profile`` of scripts of every kind: its files, and what they say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import TORCH, succeeds

from phalanx.observe.operators.profiles import OperatorTable

ROOT = Path(__file__).parents[3]
MODEL = """
data = TensorDataset(torch.randn(1200, 1, 12, 12), torch.randint(0, 4, (1200,)))
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 4))
optimizer = torch.optim.Adam(model.parameters())
"""
PLAIN = """
for x, y in DataLoader(data, batch_size=20, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
JOINED = """
import phalanx
run = phalanx.join(model, optimizer)
for epoch in run.epochs(1):
    for x, y in run.batches(data, batch=20):
        run.backward(F.cross_entropy(model(x), y))
        run.step()
"""
DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
parallel = nn.parallel.DistributedDataParallel(model)
for x, y in DataLoader(data, batch_size=20, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(parallel(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
"""


def profiled(folder: Path, script: str, *words: str, steps: int = 8) -> list[OperatorTable]:
    """Run a script; return the tables of both workers, once their files are found to be right."""
    (folder / "train.py").write_text(TORCH + MODEL + script)
    succeeds(
        "run", "train.py", "--profile", str(steps), "--workers", "2", *words,
        cwd=folder, PHALANX_RUNS=str(folder / "runs"),
    )  # fmt: skip
    (run,) = (folder / "runs").iterdir()
    names = {"rank-0.json", "rank-0.trace.json.gz", "rank-1.json", "rank-1.trace.json.gz"}
    assert {path.name for path in (run / "profiles").iterdir()} == names
    tables = [read(run, rank) for rank in (0, 1)]
    for table in tables:
        assert 0 < table.steps <= steps
        groups, layers = table.seconds_by("group"), table.seconds_by("layer")
        assert {"convolution", "matmul", "loss", "optimizer", "communication"} <= set(groups)
        assert {"0 Conv2d", "3 Linear"} <= set(layers)
    return tables


def read(run: Path, rank: int) -> OperatorTable:
    trace: dict[str, Any] = json.loads(
        gzip.decompress((run / "profiles" / f"rank-{rank}.trace.json.gz").read_bytes())
    )
    assert trace["traceEvents"]
    return msgspec.json.decode(
        (run / "profiles" / f"rank-{rank}.json").read_bytes(), type=OperatorTable
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (PLAIN, ("--view", "parts", "--check", "off")),
        (PLAIN, ("--view", "whole", "--check", "3")),
        (JOINED, ("--strategy", "allreduce")),
    ],
)
def test_our_workers(tmp_path: Path, script: str, words: tuple[str, ...]) -> None:
    for table in profiled(tmp_path, script, *words):
        took = sum(row.self_seconds for row in table.operators)
        assert 0 < took + table.python_seconds <= table.step_seconds * 1.02
        assert {"input", "forward", "backward", "communication"} <= set(table.seconds_by("phase"))


def test_a_profile_leaves_calls_shared_out(tmp_path: Path) -> None:
    """While steps are recorded and after that, each worker computes its half of a batch."""
    shows_rows = """
class Shows(nn.Module):
    def forward(self, x):
        print("rows", len(x))
        return x
model.append(Shows())
"""
    profiled(tmp_path, shows_rows + PLAIN, "--view", "whole", "--check", "off")
    for log in (tmp_path / "runs").glob("*/logs/rank-*.log"):
        rows = [line for line in log.read_text().splitlines() if line.startswith("rows ")]
        assert rows.count("rows 20") < 10, "all but the first calls and a few checks are shared"


def test_a_ddp_script_as_it_is(tmp_path: Path) -> None:
    for table in profiled(tmp_path, DDP, "--framework", "torch"):
        assert any(row.operator == "gloo:all_reduce" for row in table.operators)


def test_a_script_without_steps_that_can_be_seen_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained by other means')")
    ran = succeeds(
        "run", "train.py", "--profile", "--workers", "1", "--framework", "torch",
        cwd=tmp_path, PHALANX_RUNS=str(tmp_path / "runs"),
    )  # fmt: skip
    (log,) = (tmp_path / "runs").glob("*/logs/rank-0.log")
    assert "nothing was profiled: the script calls neither" in log.read_text() + ran.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_systems_in_one_table(tmp_path: Path) -> None:
    script = ROOT / "examples" / "mnist_mlp.py"
    succeeds(
        "compare", str(script), "--systems", "phalanx,torch-ddp,tf-mwms", "--workers", "2",
        "--epochs", "1", "--batch", "64", "--profile", cwd=tmp_path, limit=1700,
    )  # fmt: skip
    lines = succeeds("report", "--profile", cwd=tmp_path).stdout.splitlines()
    for group in ("matmul", "loss", "optimizer", "communication"):
        (row, *_) = [line for line in lines if line.startswith(f"{group} ")]
        assert row.count("×") == 2, row
