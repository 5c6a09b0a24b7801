"""Data travels once, also when the way is cut in the middle; what workers save comes home."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_machines import lab, run_in
from ssh_runs import Bench, cut

from phalanx.lab.lab import Lab

pytestmark = pytest.mark.slow
__all__ = ["lab"]
PARTS, PART = 8, 250_000_000
SIZE = PARTS * PART
READS = """
import hashlib
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
for path in sorted(Path(run.data).iterdir()):
    with path.open("rb") as file:
        print("has", path.name, hashlib.file_digest(file, "sha256").hexdigest(), flush=True)
save_file(dict(model.state_dict()), Path(run.folder) / f"weights-{run.rank}.safetensors")
Path(f"remark {run.rank}.txt").write_text("kept where it is")
"""


@pytest.fixture
def bench(bench: Bench) -> Bench:
    (bench.project / "reads.py").write_text(READS)
    return bench


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """2 GB that nothing can make smaller."""
    folder = tmp_path / "data"
    if shutil.disk_usage(tmp_path).free < 4 * SIZE:
        pytest.skip("the disk is too full")
    folder.mkdir()
    for number in range(PARTS):
        with (folder / f"part-{number}").open("wb") as file:
            for _ in range(PART // 1_000_000):
                file.write(os.urandom(1_000_000))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def received(lab: Lab, machine: str) -> int:
    return lab.counters(machine)[0]


@pytest.mark.timeout(1500)
def test_two_gigabytes_travel_once(bench: Bench, data: Path) -> None:
    words = ["run", "reads.py", "--pool", str(bench.pool), "--machines", "m1", "--data", str(data)]
    at_first = received(bench.lab, "m1")
    running = bench.start(*words)
    running.until(r"m1: copying the data, (8|9|1\d)\d\d", 400)
    with cut(bench.lab, "m1"):
        ended = running.end(60)
    assert ended.code == 3
    assert "m1" in ended.words
    interrupted = received(bench.lab, "m1")
    ended = bench.do(*words, limit=600)
    assert ended.code == 0, ended.text
    resumed = received(bench.lab, "m1")
    has = dict(re.findall(r"has (\S+) ([0-9a-f]{64})", _log(bench)))
    assert has == {path.name: _digest(path) for path in data.iterdir()}
    ended = bench.do(*words, limit=300)
    assert ended.code == 0, ended.text
    again = received(bench.lab, "m1")
    first, second, third = interrupted - at_first, resumed - interrupted, again - resumed
    print(f"\nreceived: {first:,} until it was cut, {second:,} after, {third:,} by the next run")
    assert first > 0.3 * SIZE
    assert first + second > SIZE
    # What SSH and TCP add, and what was on the way when the link was cut, is sent twice at most.
    assert first + second < 1.1 * SIZE
    assert third < 0.005 * SIZE


@pytest.mark.machines
def test_weights_come_home_and_other_files_are_kept(bench: Bench, tmp_path: Path) -> None:
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


def _log(bench: Bench) -> str:
    return (bench.latest() / "logs" / "rank-0.log").read_text()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
