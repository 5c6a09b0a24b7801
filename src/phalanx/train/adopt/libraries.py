"""Adapts to libraries' training loops: how they change a loader, and where they evaluate.

Accelerate reads one batch ahead, to know which batch is the last. Phalanx would take the wrong
batch for the present one, so Accelerate's loaders read an adopted pass batch by batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

_EVALUATES = ("evaluation_loop", "prediction_loop")
COUNTING = ("transformers.trainer", "lightning.pytorch.loops", "pytorch_lightning.loops")
_MARK = "_phalanx_plain"


def look_for_libraries() -> None:
    """Patch the libraries that the script has imported by now, each of them once."""
    shard = getattr(sys.modules.get("accelerate.data_loader"), "DataLoaderShard", None)
    if shard is not None and not hasattr(shard.__iter__, _MARK):
        setattr(iterate_shard, _MARK, shard.__iter__)
        shard.__iter__ = iterate_shard


def iterate_shard(self: Any) -> Iterator[Any]:
    """Replaces ``DataLoaderShard.__iter__``."""
    from phalanx.train.adopt.torch_patches import current_adoption

    adoption, loader = current_adoption(), self.base_dataloader
    plain: Iterator[Any] = getattr(iterate_shard, _MARK)(self)
    if adoption is None or self.skip_batches or not adoption.trains_on(loader):
        return plain
    self.begin()
    self.set_epoch(self.iteration)
    return _batch_by_batch(self, iter(loader), adoption)


def _batch_by_batch(shard: Any, batches: Iterator[Any], adoption: Any) -> Iterator[Any]:
    move = sys.modules["accelerate.data_loader"].send_to_device
    for batch in batches:
        if shard.device is not None:
            batch = move(batch, shard.device, non_blocking=shard._non_blocking)
        shard.end_of_dataloader = adoption.in_last_batch
        yield batch
    shard.iteration += 1
    shard.end()


def library_trains(frame: FrameType | None) -> bool | None:
    """Whether the library around ``frame`` trains on its data; ``None`` for unknown libraries."""
    while frame is not None:
        name = frame.f_code.co_name
        if frame.f_globals.get("__name__", "").startswith("transformers.trainer"):
            if name in _EVALUATES:
                return False
            if name.startswith(("_inner_training_loop", "_run_epoch")):
                return True
        frame = frame.f_back
    return None
