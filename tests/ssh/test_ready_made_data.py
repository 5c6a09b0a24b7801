"""Data sets that are in this computer's cache reach machines that have no internet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_machines import lab, run_in
from made_mnist import make_mnist
from ssh_runs import Bench, nothing_left

from phalanx.core.script.datasets import IDX_FILES

pytestmark = pytest.mark.slow
__all__ = ["lab"]
LOADS = """
import os, torch, phalanx
from torch import nn

train, test = phalanx.data.load("mnist")
print("loaded", len(train.y), len(test.y), flush=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
phalanx.fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=nn.CrossEntropyLoss(), train=train, test=test, epochs=1, batch=64)
"""
SIBLING = """
import os
from pathlib import Path
import torch.distributed as dist

dist.init_process_group("gloo")
files = sorted(p.name for p in (Path(os.environ["PHALANX_DATA"]) / "mnist").glob("*-ubyte"))
print("found", len(files), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def cache(bench: Bench, tmp_path: Path) -> Iterator[Path]:
    (bench.project / "loads.py").write_text(LOADS)
    (bench.project / "sibling.py").write_text(SIBLING)
    make_mnist(tmp_path / "cache" / "mnist")
    yield tmp_path / "cache"
    for machine in ("m1", "m2"):
        run_in(bench.lab, machine, ["rm", "-rf", "/run/home/.cache"])


def words(bench: Bench, script: str, *more: str) -> list[str]:
    return ["run", script, "--pool", str(bench.pool), *more]


def test_what_is_cached_here_is_sent_once(bench: Bench, cache: Path) -> None:
    here = {"PHALANX_DATA": str(cache), "PHALANX_DATA_UNCHECKED": "1"}
    ended = bench.do(*words(bench, "loads.py"), **here)
    assert ended.code == 0, ended.text
    for machine in ("m1", "m2"):
        assert f"{machine}: sending mnist (3.93 MB) from {cache}" in ended.words
    for rank in (0, 1):
        assert "loaded 4000 1000" in (bench.latest() / "logs" / f"rank-{rank}.log").read_text()
    before = [bench.lab.counters(machine)[0] for machine in ("m1", "m2")]
    ended = bench.do(*words(bench, "loads.py"), **here)
    assert ended.code == 0 and "sending" not in ended.words, ended.text
    ended = bench.do(*words(bench, "sibling.py", "--framework", "torch"), **here)
    assert ended.code == 0 and "sending" not in ended.words, ended.text
    for rank in (0, 1):
        assert "found 4" in (bench.latest() / "logs" / f"rank-{rank}.log").read_text()
    after = [bench.lab.counters(machine)[0] for machine in ("m1", "m2")]
    assert all(b - a < 3_000_000 for a, b in zip(before, after, strict=True)), "sent again"
    nothing_left(bench.lab, "m1", "m2")


def test_what_nobody_has_is_refused_before_workers_start(bench: Bench, cache: Path) -> None:
    shutil.rmtree(cache / "mnist")
    ended = bench.do(*words(bench, "loads.py"), PHALANX_DATA=str(cache))
    assert ended.code == 2, ended.text
    assert "has no 'mnist', which loads.py loads, and cannot download it" in ended.words
    assert not any(bench.runs.iterdir()), "no run was started"
    assert "Traceback" not in ended.text
    nothing_left(bench.lab, "m1", "m2")


def test_what_a_machine_has_is_used_there(bench: Bench, cache: Path) -> None:
    """Each machine is asked: one has its own, the other is sent it."""
    run_in(bench.lab, "m1", ["mkdir", "-p", "/run/home/.cache/phalanx/datasets/mnist"])
    for name in IDX_FILES:
        file = f"/run/home/.cache/phalanx/datasets/mnist/{name}"
        run_in(bench.lab, "m1", ["touch", file])  # found, and not read: it is not what it should be
    here = {"PHALANX_DATA": str(cache), "PHALANX_DATA_UNCHECKED": "1"}
    ended = bench.do(*words(bench, "loads.py"), **here)
    assert "m2: sending mnist" in ended.words and "m1: sending" not in ended.words
    assert ended.code != 0 and "datasets/mnist/train-images" in ended.words, ended.text
