"""The order of the rows in one pass over blocks: window after window.

Blocks are permuted by the seed. Several blocks in a row form a window, and the rows of a window are
permuted too, so a batch can have rows that are far apart in the files. Without a shuffle, a window
is one block, and the order is that of the files.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.policies.lanes import Range


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
        self._starts = np.cumsum(self._rows) - self._rows
        self._seeds, self.shuffle = (seed, number), shuffle
        lines: list[int | None] = [None]
        if any(home is not None for home in homes):
            lines = list(range(workers))
        mixed = np.arange(len(rows))
        if shuffle:
            mixed = np.random.default_rng(self._seeds).permutation(mixed)
        at_home = [[b for b in mixed.tolist() if homes[b] == home] for home in lines]
        grouped = [_grouped(blocks, self._rows, window if shuffle else 1) for blocks in at_home]
        self.windows: list[list[int]] = [group for line in grouped for group in line]
        """The blocks of each, in the order of the pass."""
        sizes = [int(self._rows[blocks].sum()) for blocks in self.windows]
        self.ends: NDArray[np.int64] = np.concatenate(([0], np.cumsum(sizes)))
        """Ends of the windows, as places in the pass; 0 before the first."""
        counts = np.cumsum([0, *(len(line) for line in grouped)])
        self.lines: list[list[Range]] = [
            [(int(self.ends[w]), int(self.ends[w + 1])) for w in range(first, last)]
            for first, last in pairwise(counts)
        ]
        """The windows as ranges: one list for all workers, or one for each if blocks have homes."""
        self.digest = zlib.crc32(repr((self.windows, rows, self._seeds, shuffle)).encode())
        """Equal for an equal order."""
        self._numbers_in = lru_cache(2)(self._all_numbers_in)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def window_of(self, place: int) -> int:
        return int(np.searchsorted(self.ends, place, side="right")) - 1

    def __getitem__(self, places: slice) -> Tensor:
        return torch.arange(places.start, places.stop)

    def places_in(self, window: int) -> list[NDArray[np.int64]]:
        """For each block of a window, the places of its rows in that window."""
        rows = self._rows[self.windows[window]]
        places = np.arange(rows.sum())
        if self.shuffle:
            places = np.random.default_rng([*self._seeds, window]).permutation(places)
        return np.split(places, np.cumsum(rows)[:-1])

    def row_numbers(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of rows as the files count them."""
        numbers = np.empty_like(places)
        windows = np.searchsorted(self.ends, places, side="right") - 1
        for window in dict.fromkeys(windows.tolist()):
            here = windows == window
            numbers[here] = self._numbers_in(window)[places[here] - self.ends[window]]
        return numbers

    def _all_numbers_in(self, window: int) -> NDArray[np.int64]:
        blocks = self.windows[window]
        rows = [self._starts[block] + np.arange(self._rows[block]) for block in blocks]
        numbers = np.concatenate(rows)
        found = np.empty_like(numbers)
        found[np.concatenate(self.places_in(window))] = numbers
        return found


def _grouped(blocks: list[int], rows: NDArray[np.int64], least: int) -> list[list[int]]:
    """Cut ``blocks`` into groups of at least ``least`` rows; the last group may have fewer."""
    groups: list[list[int]] = []
    filled = least
    for block in blocks:
        if filled >= least:
            groups.append([])
            filled = 0
        groups[-1].append(block)
        filled += int(rows[block])
    return groups
