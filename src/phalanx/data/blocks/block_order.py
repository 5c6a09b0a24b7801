"""The order of the rows in one pass over blocks: window after window.

Blocks are permuted by the seed; some that follow each other are a window, and the rows of a window
are permuted too. Rows that stand far apart in the files, but in the same window, so come to lie in
the same batch. Without a shuffle a window is one block, and the order is that of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.rules.lanes import Range

KEPT = 3
"""Windows of which the order is remembered."""


class BlockOrder:
    def __init__(
        self,
        rows: Sequence[int],
        homes: Sequence[int | None],
        *,
        window: int,
        seed: int,
        number: int,
        shuffle: bool,
        workers: int = 1,
    ) -> None:
        """``rows`` and ``homes`` of the blocks; a window has ``window`` rows or a little more."""
        self._rows = np.asarray(rows, np.int64)
        self._offsets = np.concatenate(([0], np.cumsum(self._rows)))
        self._seeds, self._shuffle = (seed, number), shuffle
        lines: list[int | None] = [None]
        if any(home is not None for home in homes):
            lines = list(range(workers))
        mixed = _permutation(len(rows), self._seeds) if shuffle else np.arange(len(rows))
        at_home = [[int(b) for b in mixed if homes[b] == home] for home in lines]
        grouped = [_grouped(blocks, self._rows, window if shuffle else 1) for blocks in at_home]
        self.windows: list[list[int]] = [group for line in grouped for group in line]
        """The blocks of each, in the order of the pass."""
        sizes = [int(self._rows[blocks].sum()) for blocks in self.windows]
        self._ends = np.concatenate(([0], np.cumsum(sizes)))
        counts = np.cumsum([0, *(len(line) for line in grouped)])
        self.lines: list[list[Range]] = [
            [(int(self._ends[w]), int(self._ends[w + 1])) for w in range(first, last)]
            for first, last in pairwise(counts)
        ]
        """The windows as ranges; one line, or one for each home."""
        self._kept: dict[int, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def window_of(self, place: int) -> int:
        return int(np.searchsorted(self._ends, place, side="right")) - 1

    def rows_of(self, ranges: Sequence[Range]) -> Tensor:
        """The numbers of the rows there, as the files count them."""
        found = []
        for start, end in ranges:
            while start < end:
                window = self.window_of(start)
                begin, until = int(self._ends[window]), min(end, int(self._ends[window + 1]))
                found.append(self._order_in(window)[start - begin : until - begin])
                start = until
        return torch.from_numpy(np.concatenate(found) if found else np.empty(0, np.int64))

    def __getitem__(self, places: slice) -> Tensor:
        return self.rows_of([(places.start, places.stop)])

    def _order_in(self, window: int) -> NDArray[np.int64]:
        known = self._kept.pop(window, None)
        if known is None:
            starts, rows = self._offsets[:-1], self._rows
            blocks = self.windows[window]
            known = np.concatenate([np.arange(starts[b], starts[b] + rows[b]) for b in blocks])
            if self._shuffle:
                known = known[_permutation(len(known), (*self._seeds, window))]
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
        self._kept[window] = known
        return known


def _permutation(count: int, seeds: Sequence[int]) -> NDArray[np.int64]:
    return np.random.default_rng(list(seeds)).permutation(count)


def _grouped(blocks: list[int], rows: NDArray[np.int64], least: int) -> list[list[int]]:
    """Blocks that follow each other, so many that they have ``least`` rows; the last may not."""
    groups: list[list[int]] = []
    filled = least
    for block in blocks:
        if filled >= least:
            groups.append([])
            filled = 0
        groups[-1].append(block)
        filled += int(rows[block])
    return groups
