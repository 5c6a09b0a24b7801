"""Decides which worker reads which rows of data in windows of blocks, which are costly to open.

The rows of a pass stand in one line: window after window, each in its own order. A worker's *lane*
is the window that it reads and the one that it reads next. An empty lane takes the next window of
the line; if there is none, it takes the next window of the fullest lane, or the second half of that
lane's rows. So each row is given out exactly once, one worker opens a window (more only towards the
end), and workers of all speeds end together.

Rows may be *pinned*: only one worker can read them. Then each lane has its own line, and takes
nothing from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.policies.sample_assignment import LANE_CELLS

Range = tuple[int, int]
"""Rows ``start … end`` of the line."""


@dataclass(frozen=True)
class LaneState:
    """What a checkpoint keeps."""

    lanes: list[tuple[int, int, int, int]]
    """For each worker, the rows that it reads, and those that it reads next."""
    lines: list[list[Range]]
    """The windows that no lane has taken: one line for all workers, or one for each."""
    order: int = 0
    """A digest of the order whose rows these are."""


class Lanes:
    """Pure: the same calls give the same rows. ``cells`` holds all that changes."""

    def __init__(self, lines: Sequence[Sequence[Range]], workers: int) -> None:
        """One line for all workers, or one for each if rows are pinned."""
        self.workers, self.pinned = workers, len(lines) > 1
        self._lines = [[one for one in line if one[0] < one[1]] for line in lines]
        self.cells: NDArray[np.int64] = np.zeros(workers * LANE_CELLS, np.int64)
        for place in (1, 3):  # first a window to read for each, then a next one
            for worker in range(workers):
                self._lanes[worker, place : place + 2] = self._next_of_line(worker)

    @property
    def _lanes(self) -> NDArray[np.int64]:
        """Per worker: windows taken from its line; start and end of its rows, and of its next."""
        return self.cells.reshape(self.workers, LANE_CELLS)

    # -- taking ------------------------------------------------------------------------------

    def take(self, worker: int, want: int) -> list[Range]:
        """The next ``want`` rows of that worker; fewer only when there are no more for it."""
        found: list[Range] = []
        lane = self._lanes[worker]
        while want > 0 and (lane[1] < lane[2] or self._refill(worker)):
            start, end = int(lane[1]), int(min(lane[1] + want, lane[2]))
            found.append((start, end))
            lane[1], want = end, want - (end - start)
        return found

    def take_one(self, worker: int, want: int, most: int, least: int = 1) -> Range | None:
        """About ``want`` rows in a row, at most ``most``; ``None`` if there are no more. The rest
        of a window is taken too if it has fewer than ``least`` rows."""
        lane = self._lanes[worker]
        if lane[1] == lane[2] and not self._refill(worker):
            return None
        start, there = int(lane[1]), int(lane[2] - lane[1])
        rows = min(want, most, there)
        if there - rows < least and there <= most:
            rows = there
        lane[1] += rows
        return start, start + rows

    def _refill(self, worker: int) -> bool:
        lane = self._lanes[worker]
        lane[1:3] = lane[3:5]
        lane[3:5] = self._next_of_line(worker)
        if lane[1] == lane[2] and not self.pinned:
            self._take_from_fullest(worker)
        return bool(lane[1] < lane[2])

    def _next_of_line(self, worker: int) -> Range:
        line = worker if self.pinned else 0
        number = int(self._lanes[line, 0])
        if number == len(self._lines[line]):
            return 0, 0
        self._lanes[line, 0] += 1
        return self._lines[line][number]

    def _take_from_fullest(self, worker: int) -> None:
        lanes = self._lanes
        lane, fullest = lanes[worker], lanes[int((lanes[:, 2::2] - lanes[:, 1::2]).sum(1).argmax())]
        if fullest[3] < fullest[4]:
            lane[1:3], fullest[3:5] = fullest[3:5].copy(), 0
        else:
            middle = int(fullest[1] + fullest[2]) // 2
            lane[1:3], fullest[2] = (middle, fullest[2]), middle

    # -- what is left ------------------------------------------------------------------------

    def next_window(self, worker: int) -> int | None:
        """The first row of what this worker reads next, if that is known."""
        lane = self._lanes[worker]
        return int(lane[3]) if lane[3] < lane[4] else None

    def left(self) -> list[int]:
        """Rows that each worker has left, where they are pinned."""
        held = (self._lanes[:, 2::2] - self._lanes[:, 1::2]).sum(1)
        ahead = [sum(end - start for start, end in line) for line in self._untaken()]
        return [int(one) + more for one, more in zip(held, ahead, strict=True)]

    def _untaken(self) -> list[list[Range]]:
        return [line[int(self._lanes[n, 0]) :] for n, line in enumerate(self._lines)]

    def export_state(self) -> LaneState:
        lanes = [tuple(int(number) for number in lane[1:]) for lane in self._lanes]
        return LaneState(lanes, self._untaken())  # type: ignore[arg-type]

    @classmethod
    def import_state(cls, state: LaneState, workers: int) -> Lanes:
        """Restore lanes: exactly, for the same number of workers; else all rows in one line."""
        if len(state.lanes) == workers:
            lanes = cls([[] for _ in state.lines], workers)
            lanes._lines = [list(map(tuple, line)) for line in state.lines]  # type: ignore[arg-type]
            lanes._lanes[:, 1:] = state.lanes
            return lanes
        held = [(lane[at], lane[at + 1]) for at in (0, 2) for lane in state.lanes]
        return cls([[*held, *(one for line in state.lines for one in line)]], workers)
