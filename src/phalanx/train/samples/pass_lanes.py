"""The lanes of one pass over blocks, as one worker follows them.

In lockstep every worker computes what all workers take, without messages, so all know the same.
Where workers claim rows, the lanes are in shared memory meanwhile (see ``SharedLeases``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.data.blocks.block_data import BlockData
from phalanx.data.blocks.block_order import BlockOrder
from phalanx.policies.lanes import Lanes, LaneState, Range
from phalanx.policies.sample_assignment import Lease

KEPT = 16
"""Batches that may have been read ahead when a segment ends, and are then read again."""


def check_order(same: bool) -> None:
    if not same:
        raise InputError(
            "the checkpoint is of the middle of an epoch, whose data were read in another way",
            "Give the same files, by= and window= as in the run that saved it.",
        )


class PassLanes:
    def __init__(
        self,
        order: BlockOrder,
        data: BlockData,
        rank: int,
        workers: int,
        state: LaneState | None = None,
    ) -> None:
        self._order, self._data, self._rank = order, data, rank
        self._lanes = Lanes(order.lines, workers)
        if state is not None:
            check_order(state.order == order.digest)
            self._lanes = Lanes.import_state(state, workers)
        self.pinned = self._lanes.pinned
        """Whether only one worker can read each row."""
        if state is None and self.pinned and 0 in self._lanes.left():
            raise InputError(
                f"worker {self._lanes.left().index(0)} has no rows to train on",
                "Spread the rows over all workers (df.repartition), or use fewer workers.",
            )
        self._batches: deque[tuple[int, NDArray[np.int64]]] = deque(maxlen=KEPT)
        """The end of each of the last batches, and the state of the lanes there."""
        first, last = order.lines[rank if self.pinned else 0][0]
        self._weightless = [(first, min(first + 2, last))]
        """The rows for a worker without a part of a batch, which goes through the loop too."""

    @property
    def note(self) -> str:
        """Describe how the rows are read."""
        if self.pinned:
            return "each worker reads its own rows: batch shares follow them, and balance is off"
        rows, window = len(self._order), self._data.window
        within = f" in windows of {window:,}" if window < rows else ""
        order = f"shuffled{within}" if self._data.shuffle else "in the order of the files"
        several = "; which rows share a batch depends on the number of workers"
        return f"{rows:,} rows are read by blocks, {order}{several * (self._lanes.workers > 1)}"

    @property
    def cells(self) -> NDArray[np.int64]:
        return self._lanes.cells

    @property
    def left(self) -> list[int]:
        """Return how many rows each worker has left, if they are pinned."""
        return self._lanes.left()

    def left_in(self, cells: NDArray[np.int64]) -> list[int]:
        with self._using(cells):
            return self._lanes.left()

    @contextmanager
    def _using(self, cells: NDArray[np.int64]) -> Iterator[None]:
        own, self._lanes.cells = self._lanes.cells, cells
        try:
            yield
        finally:
            self._lanes.cells = own

    @property
    def state(self) -> LaneState:
        return replace(self._lanes.export_state(), order=self._order.digest)

    def go_to(self, position: int) -> None:
        """Put the lanes back to ``position``, in samples of the pass: undo reading ahead."""
        for reached, cells in self._batches:
            if reached == position:
                self._lanes.cells[:] = cells
        self._batches.clear()
        self._batches.append((position, self._lanes.cells.copy()))

    def came_to(self, position: int, *, lockstep: bool) -> None:
        """Note that a segment ended at ``position``."""
        if lockstep:
            self.go_to(position)
        else:
            self._batches.clear()

    def rows(self, lease: Lease) -> Tensor:
        """Return the places of a lease's rows; in lockstep, call it once per lease, in order."""
        mine = [(lease.start, lease.end)]
        if lease.ends:
            parts = [
                self._lanes.take(rank, end - start)
                for rank, (start, end) in enumerate(pairwise(lease.ends))
            ]
            self._batches.append((lease.batch_end, self._lanes.cells.copy()))
            mine = parts[self._rank] or self._weightless
            if (ahead := self._lanes.next_window(self._rank)) is not None:
                self._data.read_ahead(self._order.window_of(ahead))
        return torch.cat([torch.arange(start, end) for start, end in mine])

    def claim(
        self, cells: NDArray[np.int64], worker: int, want: int, most: int, least: int
    ) -> Range | None:
        """Claim rows of that worker's lane from the shared ``cells``, under their lock."""
        with self._using(cells):
            found = self._lanes.take_one(worker, want, most, least)
            ahead = self._lanes.next_window(worker)
        if ahead is not None and worker == self._rank:
            self._data.read_ahead(self._order.window_of(ahead))
        return found
