"""Whether several workers do what one process does: tried on the first steps of a training.

A child of the second worker, whose files are kept apart, goes on with the script alone, as plain
Python would, for some steps. Weights and learning rates after each of its steps are compared with
those of the workers. Meanwhile the workers draw the random numbers of one process, so that dropout
is the same too.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phalanx.train.adopt.side_effects import keep_files_of_child_apart
from phalanx.train.proof.child import become_child, fork
from phalanx.train.whole.calls import AS_ALONE

STEPS, SECONDS = AS_ALONE, 5.0
"""That the child makes, and may take."""
PATIENCE = 3.0
"""Seconds that it is waited for at the end of a short training."""
_VALUES = 256
"""Of a parameter, that are compared."""
_TOLERANCE, _OTHERWISE = 1e-6, 2e-2
"""In float64, and otherwise: how far weights may be from those of one process, as a share of how
far they have moved."""
_STILL = 1e-7
"""A parameter that has moved less, of its size, has not been trained."""
_GOING, _DONE = 0.0, 1.0


@dataclass(frozen=True)
class Verdict:
    steps: int
    worst: float
    step: int = 0
    """Where it differs by too much: the step, and the parameter, or a negative group of rates."""
    place: int = 0

    @property
    def holds(self) -> bool:
        return self.step == 0

    def words(self, names: Sequence[str]) -> str:
        if self.holds:
            found = f"{self.worst:.0e}" if self.worst else "none"
            return f"checked against one process: {self.steps} steps, worst difference {found}"
        what = (
            f"the learning rate of parameter group {-1 - self.place}"
            if self.place < 0
            else f"the weights by {self.worst:.1%} of their movement, {names[self.place]} most"
        )
        return (
            f"step {self.step} differs from that of one process: {what}; something in the script "
            "is random on each worker, or depends on the time. With --workers 1 it trains as alone"
        )


class Proof:
    """What the weights were after each step, here and in a child that trains alone."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], *, forks: bool) -> None:
        self._optimizers = list(optimizers)
        self._parameters = [p for o in optimizers for g in o.param_groups for p in g["params"]]
        self._groups = sum(len(o.param_groups) for o in optimizers)
        self._places = [_places(p) for p in self._parameters]
        self._ends = np.cumsum([0, *(len(places) for places in self._places)])
        each = [
            (p.numel() / max(1, len(q))) ** 0.5
            for p, q in zip(self._parameters, self._places, strict=True)
        ]
        self._sizes = np.repeat(each, np.diff(self._ends))
        """How many numbers of its parameter each of the compared ones stands for (its root)."""
        exact = all(p.dtype == torch.float64 for p in self._parameters)
        self._tolerance = _TOLERANCE if exact else _OTHERWISE
        width = int(self._ends[-1]) + self._groups
        self._mine: list[np.ndarray] = [self._values()] if forks else []
        self._shared = mmap.mmap(-1, 8 * (2 + STEPS * width)) if forks else None
        if self._shared is not None:
            cells = np.frombuffer(self._shared, np.float64)
            self._head, self._rows = cells[:2], cells[2:].reshape(STEPS, width)
        self.steps = 0
        self.child: int | None = None
        self._folder: str | None = None
        self._began = time.process_time()

    def fork(self) -> bool:
        """Whether this is the child, which goes on alone."""
        self.child = fork()
        if self.child:
            return False
        become_child(4 * SECONDS)
        self._folder = keep_files_of_child_apart()
        return True

    # -- in the child ------------------------------------------------------------------------

    def note_alone(self) -> None:
        """After a step of the child, which ends with its last one."""
        if self.steps < STEPS:
            self._rows[self.steps] = self._values()
            self.steps += 1
            self._head[1] = self.steps
        if self.steps == STEPS or time.process_time() - self._began > SECONDS:
            self.end_alone()

    def end_alone(self) -> None:
        self._head[0] = _DONE
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)

    # -- in the workers ----------------------------------------------------------------------

    def note(self) -> Verdict | None:
        """After a step of the workers; what was found, once the child has ended."""
        if self._shared is not None and self.steps < STEPS:
            self._mine.append(self._values())
        self.steps += 1
        if self.child is None or not self._has_ended() or self.steps < self._head[1]:
            return None
        self.child = None
        return self._compared(int(self._head[1]))

    def _has_ended(self) -> bool:
        assert self.child is not None
        if self._head[0] == _GOING and self.steps % 16 > 0 and self.steps > STEPS:
            return False
        with suppress(ChildProcessError):  # it was reaped the last time
            os.waitpid(self.child, os.WNOHANG)
        return self._head[0] == _DONE or not _is_there(self.child)

    def last(self) -> Verdict | None:
        """The training is over, perhaps before the child has ended."""
        until = time.monotonic() + PATIENCE
        while self.child is not None and time.monotonic() < until:
            if self._has_ended():
                self.child, steps = None, min(int(self._head[1]), len(self._mine) - 1)
                return self._compared(steps) if steps else None
            time.sleep(0.01)
        self._stop()
        return None

    def _stop(self) -> None:
        if self.child is not None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.child, signal.SIGKILL)
                os.waitpid(self.child, 0)
            self.child = None

    def _compared(self, steps: int) -> Verdict:
        worst, first = 0.0, self._mine[0]
        for step in range(steps):
            here, alone = self._mine[step + 1], self._rows[step]
            rates = np.abs(here - alone)[int(self._ends[-1]) :]
            known = np.abs(alone)[int(self._ends[-1]) :]
            for group in np.flatnonzero(rates > 1e-6 * known + 1e-30):
                return Verdict(steps, float(rates[group]), step + 1, -1 - int(group))
            values = slice(0, int(self._ends[-1]))
            off = self._distance(here[values], alone[values], first[values])
            # Rounding grows with each step: Adam moves what has no gradient as far as the rest.
            if not off <= min(0.5, self._tolerance * 2.0**step):
                apart = np.abs((here - alone)[values]) * self._sizes
                place = int(np.searchsorted(self._ends, int(apart.argmax()), side="right")) - 1
                return Verdict(steps, off, step + 1, place)
            worst = max(worst, off)
        return Verdict(steps, worst)

    def _distance(self, here: np.ndarray, alone: np.ndarray, before: np.ndarray) -> float:
        """Of two results, as a share of how far the second one has moved.

        Of all parameters together: one whose gradient is zero but for rounding, as that of a bias
        before batch norm, is moved by Adam as far as any other, in any direction.
        """
        moved, size = (float(np.linalg.norm(v * self._sizes)) for v in (alone - before, alone))
        off = float(np.linalg.norm((here - alone) * self._sizes))
        if moved <= _STILL * size:
            return 0.0 if off <= 10 * _STILL * size else math.inf
        return off / moved

    def _values(self) -> np.ndarray:
        """A few values of each parameter, and the learning rates."""
        with torch.no_grad():
            found = [
                torch.view_as_real(v).flatten()[::2] if v.is_complex() else v
                for p, places in zip(self._parameters, self._places, strict=True)
                for v in [p.detach().reshape(-1)[places]]
            ]
            rates = [float(g["lr"]) for o in self._optimizers for g in o.param_groups]
            rates = [*rates, *[0.0] * self._groups][: self._groups]
            values = torch.cat([v.double() for v in found]).numpy() if found else np.zeros(0)
        return np.concatenate([values, rates])


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _places(parameter: Tensor) -> Tensor:
    count = parameter.numel()
    return torch.arange(count)[:: max(1, math.ceil(count / _VALUES))]
