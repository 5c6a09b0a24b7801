"""Real DDP and TensorFlow scripts on this machine, as they are, and the comparison of systems."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import last_json, succeeds

ROOT = Path(__file__).parents[3]
DDP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(f"sum {total.item():.0f} of {dist.get_world_size()}")
dist.destroy_process_group()
"""


def test_torch_processes_find_each_other(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(DDP)
    ended = succeeds("run", "--framework", "torch", str(script), "--workers", "2", cwd=tmp_path)
    assert "sum 3 of 2" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_systems_in_one_table(tmp_path: Path) -> None:
    systems = "phalanx,torch-ddp,tf-mwms,tf-ps"
    script = ROOT / "examples" / "mnist_mlp.py"
    ended = succeeds(
        "compare", "--systems", systems, str(script), "--workers", "2", "--epochs", "2", "--json",
        cwd=tmp_path, limit=1700,
    )  # fmt: skip
    runs = last_json(ended.stdout)["runs"]
    assert [run["system"] for run in runs] == systems.split(",")
    assert all(run["epochs"] == 2 and abs(run["samples"] - 108_000) < 200 for run in runs)
    assert (
        max(run["test_accuracy"] for run in runs) - min(run["test_accuracy"] for run in runs) < 0.03
    )
