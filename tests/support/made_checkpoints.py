"""A checkpoint of a run that never happened, with one small matrix in it."""

from __future__ import annotations

import hashlib

import msgspec
import torch
from safetensors.torch import save

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.train.checkpoint.checkpoint_manifest import (
    BestRecord,
    CheckpointManifest,
    FileRecord,
    FlatLayout,
    OptimizerLayout,
    PlaceRecord,
    folder_name,
)

WORKERS = 2


def write_checkpoint(paths: RunPaths, number: int, *, value: float = 1.0) -> None:
    """``layer.weight`` is two by three, all of it ``value``, and ``layer.scale`` is a buffer."""
    folder = paths.checkpoints / folder_name(number)
    folder.mkdir(parents=True)
    shared = {"o0.parameters.0": torch.full((6,), value), "buffer.layer.scale": torch.ones(1)}
    files = {"shared.safetensors": save(shared)}
    files |= {f"rank-{r}.safetensors": save({"x": torch.zeros(1)}) for r in range(WORKERS)}
    records = {}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        records[name] = FileRecord(len(data), hashlib.sha256(data).hexdigest())
    manifest = _manifest(number, records)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def mark_best(paths: RunPaths, number: int) -> None:
    record = BestRecord(number, "test_accuracy", 0.9)
    (paths.checkpoints / "best.json").write_bytes(msgspec.json.encode(record))


def damage(paths: RunPaths, number: int) -> None:
    file = paths.checkpoints / folder_name(number) / "shared.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _manifest(number: int, files: dict[str, FileRecord]) -> CheckpointManifest:
    place = PlaceRecord(["layer.weight"], 0, 6, 0, [2, 3], [3, 1])
    return CheckpointManifest(
        number=number,
        wall=1_700_000_000.0,
        strategy="allreduce",
        workers=WORKERS,
        seed=0,
        batch=128,
        samples=1000,
        epochs=3,
        epoch=number,
        pass_number=number,
        position=0,
        phase=0,
        files=files,
        optimizers=[OptimizerLayout("SGD", [FlatLayout("float32", 6, [place])])],
    )
