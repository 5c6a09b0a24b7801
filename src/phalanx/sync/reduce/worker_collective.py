"""Sums and gathers tensors of any kind among all workers, in the order of the program.

On one host they go through a window of shared memory with two sides, used in turn: one side can be
read until all workers have begun the next exchange, so that a gather needs one barrier only.
Between hosts the first worker of each host sends for all its workers.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.clock import Clock

FEW = 1 << 13
"""Up to so many numbers each worker sums all: that is cheaper than one more barrier."""
FEW_WORKERS = 3
"""Up to so many workers each sum all numbers: sharing the work would move as many bytes."""
_ROOM = 1 << 16
HOST = torch.device("cpu")


@dataclass
class Spent:
    """Seconds and bytes that exchanges have taken since this was last reset."""

    seconds: float = 0.0
    waited: float = 0.0
    sent: int = 0


class WorkerCollective:
    """Sums and gathers for one worker: all workers call the same methods in the same order, with
    tensors of the same kinds."""

    def __init__(self, arena: Arena, clock: Clock, gone: Callable[[], bool]) -> None:
        self.rank, self.workers = arena.rank, arena.workers
        self.spent = Spent()
        self._arena, self._host, self._clock, self._gone = arena, arena.host, clock, gone
        self._windows: dict[torch.dtype, Tensor] = {}
        self._count = 0
        self.is_left = False
        """Whether this is a forked child: an exchange, by a graph from before the fork, ends it."""
        told = self._host.region("whole.calls", 2 * self._host.workers * 2, torch.int64)
        self._told = told.view(2, self._host.workers, 2).numpy()
        self._between, self._teams = None, [list(range(self.workers))]
        if arena.hosts is not None:
            everyone = range(self.workers)
            leader = arena.region("whole.hosts", self.workers, torch.int64)
            leader[self.rank] = min(arena.hosts.here)
            arena.barrier()
            found = leader.tolist()
            leaders = arena.hosts.leaders(everyone)
            self._teams = [[r for r in everyone if found[r] == first] for first in leaders]
            if self._host.rank == 0:
                self._between = arena.hosts.collective("whole", everyone)

    # -- what workers do together ------------------------------------------------------------

    def sum(self, flat: Tensor, meaning: int = 0) -> Tensor:
        """Return the sum of all workers' ``flat``, with the same bits on every worker."""
        total = self.sum_written(
            flat.dtype, flat.numel(), lambda row: row.copy_(flat.view(-1)), meaning
        )
        return total.view(flat.shape)

    def sum_written(
        self, dtype: torch.dtype, count: int, write: Callable[[Tensor], object], meaning: int = 0
    ) -> Tensor:
        """Return the sum of ``count`` numbers that each worker writes straight into the window."""
        side, turn = self._side(dtype, count * self._host.workers)
        rows = side[: count * self._host.workers].view(self._host.workers, count)
        write(rows[self._host.rank])
        self._meet(turn, count, meaning)
        here = len(rows)
        if (count <= FEW or here <= FEW_WORKERS) and self._arena.hosts is None:
            total = rows[0] + rows[1]
            for row in rows[2:]:
                total += row
            return total
        low, high = (count * (self._host.rank + i) // here for i in (0, 1))
        for row in rows[1:]:
            rows[0, low:high].add_(row[low:high])
        self._barrier()
        if self._arena.hosts is not None:
            if self._between is not None:
                self.spent.sent += self._between.all_reduce([rows[0]])
            self._barrier()
        return rows[0].clone()

    def gather(self, part: Tensor, sizes: Sequence[int], meaning: int = 0) -> Tensor:
        """Return the rows of all workers, one after another; ``sizes`` are their counts by rank."""
        row = part[:0].shape[1:].numel()
        ends = [0, *itertools.accumulate(sizes)]
        side, turn = self._side(part.dtype, ends[-1] * row)
        begin, end = ends[self.rank] * row, ends[self.rank + 1] * row
        side[begin:end].copy_(part.reshape(-1))
        self._meet(turn, ends[-1] * row, meaning)
        if self._arena.hosts is not None:
            if self._between is not None:
                self._gather_between(side, [end * row for end in ends])
            self._barrier()
        return side[: ends[-1] * row].clone().view(ends[-1], *part.shape[1:])

    def _gather_between(self, side: Tensor, ends: Sequence[int]) -> None:
        assert self._between is not None
        pieces = [[side[ends[r] : ends[r + 1]] for r in team] for team in self._teams]
        mine = next(i for i, team in enumerate(self._teams) if self.rank in team)
        before = self._between.sent
        found = self._between.all_gather([torch.cat(pieces[mine])])
        self.spent.sent += self._between.sent - before
        for place, (given,) in enumerate(found):
            if place != mine:
                for piece, got in zip(
                    pieces[place], given.split([len(p) for p in pieces[place]]), strict=True
                ):
                    piece.copy_(got)

    # -- the window --------------------------------------------------------------------------

    def _side(self, dtype: torch.dtype, count: int) -> tuple[Tensor, int]:
        """Return memory for an exchange, and which of the two sides it is on."""
        if self.is_left:
            os._exit(1)
        self._count += 1
        window = self._windows.get(dtype)
        if window is None or window.shape[1] < count:
            room = max(_ROOM, 1 << (count - 1).bit_length())
            with torch.inference_mode(False):  # the script may be in inference mode
                asked = self._host.region(f"whole.{dtype}.{room}", 2 * room, dtype)
            window = self._windows[dtype] = asked.view(2, room)
        turn = self._count % 2
        return window[turn], turn

    def _meet(self, turn: int, count: int, meaning: int) -> None:
        """Wait until all workers of this host have written; refuse calls that differ."""
        self._told[turn, self._host.rank] = (count, meaning)
        self._barrier()
        told = self._told[turn]
        if (told != told[0]).any():
            raise InputError(
                "the workers diverged: they do not call the same models with the same batches",
                "Each worker runs the whole script: what it decides has to be the same on all of "
                "them, so seed what is random, and do not decide by time or by the machine.",
            )

    def _barrier(self) -> None:
        began = self._clock.now()
        self._host.barrier(self._gone)
        self.spent.waited += self._clock.now() - began


def meaning_of(*words: object) -> int:
    """Return a number that stands for an exchange, by which workers compare their calls."""
    return zlib.crc32(repr(words).encode())
