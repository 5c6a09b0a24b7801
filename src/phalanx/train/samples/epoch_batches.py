"""Turns segments and leases of a pass over data into batches on this worker's device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.data.prefetch import FEW_THREADS, pinned, prefetch
from phalanx.data.reader import Reader, TensorReader, order
from phalanx.data.structure import map_tensors, sent
from phalanx.policies.sample_assignment import Lease

if TYPE_CHECKING:
    from phalanx.data.blocks.block_data import BlockData
    from phalanx.policies.lanes import LaneState
    from phalanx.train.samples.pass_lanes import PassLanes


HOST = torch.device("cpu")


@dataclass(frozen=True)
class Pass:
    """One pass through the data: its number and epoch, the order of samples, and the batch size."""

    number: int
    epoch: int
    reader: Reader
    samples: int
    batch: int
    order: Any
    fixed: bool = False
    """Whether each worker reads the same columns of each batch."""
    adopted: bool = False
    """Whether the order is the script's own loader's; the script then moves batches itself."""
    lanes: PassLanes | None = None
    """The lanes of the pass, if its data come in blocks."""
    counted: bool = False
    """Whether all workers need equally many batches, so that each has a part of every batch."""

    def indices(self, lease: Lease) -> Tensor:
        if self.lanes is not None:
            return self.lanes.rows(lease)
        found: Tensor = self.order[lease.start : lease.end]
        return found


def new_pass(
    number: int,
    epoch: int,
    reader: Reader,
    batch: int,
    seed: int,
    *,
    fixed: bool = False,
    rank: int = 0,
    workers: int = 1,
    lanes: LaneState | None = None,
) -> Pass:
    """Make a pass; ``lanes``: where a pass over blocks continues."""
    samples = len(reader) // batch * batch if reader.drop_last else len(reader)
    if samples == 0:
        raise InputError(
            f"drop_last drops all {len(reader)} samples, which do not fill one batch of {batch}",
            "Use a smaller batch.",
        )
    # With fixed columns samples keep their order, unless a DataLoader says otherwise.
    shuffle = reader.shuffle and not (fixed and reader.batch is None)
    if hasattr(reader, "in_order"):
        from phalanx.train.samples.pass_lanes import PassLanes

        if fixed and workers > 1:
            raise InputError(
                "fixed=True needs the same columns of each batch, and blocks are read by turns",
                'Read the data into memory: phalanx.data.read(URL, by="sample").',
            )
        blocks = cast("BlockData", reader)
        ordered, rows = blocks.in_order(seed, number, workers, shuffle=shuffle)
        walk = PassLanes(rows, ordered, rank, workers, lanes)
        return Pass(number, epoch, ordered, samples, batch, rows, fixed, lanes=walk)
    mixed = order(len(reader), seed, number, shuffle)
    return Pass(number, epoch, reader, samples, batch, mixed, fixed)


def check_same_kind(saved: LaneState | None, current: Pass) -> None:
    """Refuse to continue a pass over blocks as one over samples, or the reverse."""
    if (saved is None) != (current.lanes is None):
        from phalanx.train.samples.pass_lanes import check_order

        check_order(False)


def batch_of(chosen: RunSettings, asked: int | None) -> int:
    """Return the global batch: the command line wins over what the script ``asked`` for."""
    wanted = chosen.batch or asked or 0
    if wanted < 1:
        raise InputError("the batch size is missing", "Give it: run.batches(train, batch=128)")
    return wanted


def check_sizes(samples: int, batch: int, workers: int) -> None:
    if samples < workers:
        raise InputError(
            f"{workers} workers are more than the {samples} samples", "Use fewer --workers."
        )
    if batch < workers:
        raise InputError(
            f"the batch of {batch} is smaller than the {workers} workers",
            "The batch is shared among all workers: use a larger batch or fewer --workers.",
        )


def loaded(
    current: Pass, found: Iterator[Lease], device: torch.device, *, ahead: int, channels_last: bool
) -> Iterator[tuple[Lease, Any]]:
    """Yield each lease with its batch, read ``ahead`` of time where that pays. With ``ahead`` 0 no
    other thread is used. A plain gather from memory is always done in the training thread: another
    thread would only take turns with it, on a pinned core or on the GPU that has the data."""
    reader, cuda = current.reader, device.type == "cuda"
    tensors = reader if isinstance(reader, TensorReader) else None
    plain = tensors is not None and not tensors.augmented
    there = tensors is not None and cuda and tensors.is_on(device)
    if there and plain:  # copy the whole order to the GPU once, not batch by batch
        current = replace(current, order=sent(cast("Tensor", current.order), device))
    orders = ((lease, current.indices(lease)) for lease in found)
    ahead = ahead if reader.background else 0
    ready = reader.stream(orders, current.epoch)
    if cuda and not there:
        from phalanx.data.gpu_copies import CudaCopies, batches_ahead, copied_ahead

        if ahead and tensors is not None and plain and tensors.is_on(HOST):
            ready = batches_ahead(tensors, orders, CudaCopies(device), ahead)
        else:
            ready = copied_ahead(ready, CudaCopies(device), ahead)
    elif not cuda and getattr(reader, "pins", False):  # for a script that copies batches itself
        ready = prefetch(pinned(ready), ahead, threads=FEW_THREADS) if ahead else pinned(ready)
    elif ahead and not plain and not cuda:
        ready = prefetch(ready, ahead)
    for lease, batch in ready:
        yield lease, formatted(batch, channels_last) if channels_last else batch


def formatted(batch: Any, channels_last: bool) -> Any:
    return map_tensors(batch, _channels_last) if channels_last else batch


def _channels_last(tensor: Tensor) -> Tensor:
    if tensor.ndim != 4 or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
