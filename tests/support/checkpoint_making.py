"""Small checkpoints whose content tells their number, for tests of files and of faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from torch import Tensor

from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.checkpoint_manifest import (
    CheckpointManifest,
    FlatLayout,
    OptimizerLayout,
    PlaceRecord,
)
from phalanx.train.checkpoint.disk import unwatched
from phalanx.train.checkpoint.tensor_files import load
from phalanx.train.checkpoint.writer import Writer

SIZE = 1000
GRACE = 20.0


def manifest_of(number: int, workers: int) -> CheckpointManifest:
    places = [PlaceRecord(["weight"], 0, SIZE, 0, [SIZE], [1])]
    return CheckpointManifest(
        number=number,
        wall=0.0,
        strategy="allreduce",
        workers=workers,
        seed=7,
        batch=32,
        samples=1000,
        epochs=3,
        epoch=1,
        pass_number=1,
        position=64,
        phase=0,
        optimizers=[OptimizerLayout("SGD", [FlatLayout("float32", SIZE, places)])],
    )


def shared_of(number: int, size: int = SIZE) -> dict[str, Tensor]:
    return {"o0.parameters.0": torch.full((size,), float(number))}


def private_of(number: int, rank: int, size: int = 10) -> dict[str, Tensor]:
    return {"random": torch.full((size,), number * 100 + rank, dtype=torch.int64)}


def begin_write(writer: Writer, number: int, rank: int, workers: int) -> None:
    if rank == 0:
        shared = shared_of(number)
        writer.write(number, private_of(number, rank), manifest_of(number, workers), shared)
    else:
        writer.write(number, private_of(number, rank))


def write_whole_checkpoint(
    folder: Path,
    number: int,
    workers: int = 1,
    keep: int = 99,
    best: bool = False,
    steps: dict[int, Callable[[str], None]] | None = None,
    patience: float = GRACE,
) -> list[str | None]:
    """All ranks as threads; returns their problems."""
    writers = [
        Writer(folder, r, workers, keep, patience=patience, steps=(steps or {}).get(r, unwatched))
        for r in range(workers)
    ]
    if best:
        writers[0].mark_best(number, "test_accuracy", 0.5)
    for rank, writer in enumerate(writers):
        begin_write(writer, number, rank, workers)
    assert all(writer.finish(GRACE) for writer in writers)
    return [writer.problem for writer in writers]


def assert_whole(path: Path, manifest: CheckpointManifest) -> None:
    """What ``path`` holds is what was written under its number."""
    number = int(path.name)
    assert manifest.number == number
    assert_same(load(path, manifest, None), shared_of(number))
    for rank in range(manifest.workers):
        assert_same(load(path, manifest, rank), private_of(number, rank))


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def newest(folder: Path) -> int:
    path, manifest, _ = shelf.newest_valid(folder)
    assert_whole(path, manifest)
    return manifest.number


def die_at(step: int) -> Callable[[str], None]:
    """Kill this process before its ``step``-th step, as the kernel or a power cut would."""
    taken = 0

    def steps(_name: str) -> None:
        nonlocal taken
        if taken == step:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1

    return steps


def write_in_process(
    meeting: Barrier, folder: Path, number: int, rank: int, workers: int, step: int | None
) -> None:
    """The part of one rank, in a process of its own; with a ``step`` it dies there."""
    torch.set_num_threads(1)
    # Whoever survives waits in vain, so it gives up soon.
    patience = GRACE if step is not None else 0.5
    steps = unwatched if step is None else die_at(step)
    writer = Writer(folder, rank, workers, 1, patience=patience, steps=steps)
    meeting.wait()
    if rank == 0:
        writer.mark_best(number, "test_accuracy", 0.5)
    begin_write(writer, number, rank, workers)
    writer.finish(GRACE)
