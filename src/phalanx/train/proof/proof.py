"""Finds out whether several workers train as one process does, by some steps of a training.

A forked child of the second worker, with files of its own, continues the script alone for some
steps, as plain Python would. Weights and learning rates are compared with those of the workers
after each step.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phalanx.adapters.torch_models import parameters_of
from phalanx.sync.state.skip_dynamo_import import step_without_compiler
from phalanx.train.proof.child import Child, ends_if_it_fails

SECONDS = 5.0
"""The most seconds of computing for the child."""
PATIENCE = 4 * SECONDS
"""Seconds to wait for the child at the end of a short training."""
_VALUES = 256
"""How many values of each parameter are compared."""
_TOLERANCE, _OTHERWISE = 1e-6, 2e-2
"""The most distance from one process's weights, relative to their movement: float64, others."""
_STILL = 1e-7
"""Weights that have moved by less than this fraction of their size have not been trained."""
_DONE = 1.0
HOLDS, WEIGHTS, RATE, ENDED, NOISE, FAILED = range(1, 7)


@dataclass(frozen=True)
class Verdict:
    kind: int
    steps: int
    """How many steps were compared."""
    worst: float
    place: int = 0
    """The number of the parameter, or of the group of rates, that differs."""
    before: int = 0
    """Steps of the training before the proof."""

    @property
    def holds(self) -> bool:
        return self.kind in (HOLDS, NOISE, FAILED)

    def words(self, names: Sequence[str]) -> str:
        if self.kind == FAILED:
            return (
                "not checked against one process: no child could train alone (it failed, or the "
                "worker has a GPU or connections, which are lost in a fork)"
            )
        if self.kind == NOISE and not self.steps:
            return (
                "not checked against one process: random numbers that are drawn in the loop "
                "(dropout, noise) are each worker's own"
            )
        if self.holds:
            found = f"{self.worst:.0e}" if self.worst else "none"
            return f"checked against one process: {self.steps} steps, worst difference {found}"
        step = self.before + self.steps + 1
        if self.kind == ENDED:
            return f"one process ends its training before step {step}, and the workers go on"
        what = (
            f"the learning rate of parameter group {self.place}"
            if self.kind == RATE
            else f"the weights by {self.worst:.1%} of their movement, {names[self.place]} most"
        )
        return f"step {step} differs from that of one process: {what}"


class Proof:
    """Compares the weights after each step with those of a child that trains alone."""

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], length: int, before: int = 0
    ) -> None:
        """Prepare to compare ``length`` steps, after ``before`` steps of the training."""
        self._length, self.before = length, before
        self._optimizers = list(optimizers)
        self._parameters = parameters_of(optimizers)
        self._groups = sum(len(o.param_groups) for o in optimizers)
        self._places = [_places(p) for p in self._parameters]
        self._ends = np.cumsum([0, *(len(places) for places in self._places)])
        each = [
            (p.numel() / max(1, len(q))) ** 0.5
            for p, q in zip(self._parameters, self._places, strict=True)
        ]
        self._sizes = np.repeat(each, np.diff(self._ends))
        """The square root of how many values of its parameter each compared value stands for."""
        exact = all(p.dtype == torch.float64 for p in self._parameters)
        self._tolerance = _TOLERANCE if exact else _OTHERWISE
        kinds = {p.dtype for p in self._parameters if p.is_floating_point()}
        self._rounding = 4 * max((torch.finfo(kind).eps for kind in kinds), default=0.0)
        width = int(self._ends[-1]) + self._groups + 1
        self._mine: list[np.ndarray] = [self._values()]
        cells = np.frombuffer(mmap.mmap(-1, 8 * (3 + length * width)), np.float64)
        self._head, self._rows = cells[:3], cells[3:].reshape(length, width)
        self.steps = 0
        self.child: Child | None = None
        self._began = 0.0

    @property
    def spent(self) -> float:
        """Seconds that the child has computed."""
        return float(self._head[2])

    def fork(self, leave_shared_memory: Callable[[], None]) -> bool:
        """Fork; return whether this is the child, which goes on alone. The worker waits until the
        child has copied the memory that workers share."""
        child = self.child = Child(4 * SECONDS)
        if child.id != 0:
            if not child.answer(SECONDS):
                child.stop()
            return False
        with ends_if_it_fails():
            self._began = time.process_time()
            leave_shared_memory()
            step_without_compiler()
            child.tell(b"apart")
        return True

    # -- in the child ------------------------------------------------------------------------

    def note_alone(self, *, noise: bool) -> None:
        """Note the weights after a step of the child, and end the child after its last step;
        ``noise``: the child drew random numbers for this step."""
        self._rows[self.steps] = self._values(noise)
        self.steps += 1
        self._head[1:] = self.steps, time.process_time() - self._began
        if self.steps == self._length or self._head[2] > SECONDS:
            self.end_alone()

    def end_alone(self) -> None:
        self._head[0] = _DONE
        os._exit(0)

    # -- in the workers ----------------------------------------------------------------------

    def note(self) -> Verdict | None:
        """Note the weights after a step; return the verdict once the child has ended."""
        if self.steps < self._length:
            self._mine.append(self._values())
        self.steps += 1
        if self.child is None or (self.steps > self._length and self.steps % 16):
            return None
        return self._found()

    def _found(self) -> Verdict | None:
        """Return the verdict; ``None`` if the child has not ended, or is ahead of the workers."""
        code = self.child.exit_code() if self.child is not None else None
        steps, done = int(self._head[1]), self._head[0] == _DONE
        early = not done and code == 0  # it came to the end of the script
        if code is None or self.steps < steps + early:
            return None
        self.stop()
        found = self._compared(steps)
        if early and found.kind == HOLDS:
            return Verdict(ENDED, steps, found.worst, 0, self.before)
        failed = None if done else Verdict(FAILED, 0, 0.0, 0, self.before)
        return found if steps else failed

    def wait(self, seconds: float) -> Verdict | None:
        """Wait until the child has ended, at most so long; return the verdict."""
        until = time.monotonic() + seconds
        while self.child and self.child.exit_code() is None and time.monotonic() < until:
            time.sleep(0.005)
        return self._found()

    def last(self) -> Verdict | None:
        """Return the verdict at the end of the training, perhaps before the child has ended."""
        if found := self.wait(PATIENCE):
            return found
        steps = min(int(self._head[1]), len(self._mine) - 1) if self.child is not None else 0
        self.stop()
        return self._compared(steps) if steps else None

    def stop(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            child.end()

    def _compared(self, steps: int) -> Verdict:
        worst, first, end = 0.0, self._mine[0], int(self._ends[-1])
        for step in range(steps):
            here, alone = self._mine[step + 1], self._rows[step]
            if not np.isfinite(alone).all():  # workers skip such a step
                return Verdict(HOLDS, step, worst, 0, self.before)
            if alone[-1]:
                return Verdict(NOISE, step, worst, 0, self.before)
            rates = np.abs(here - alone)[end:]
            for group in np.flatnonzero(rates > 1e-6 * np.abs(alone)[end:] + 1e-30):
                return Verdict(RATE, step, float(rates[group]), int(group), self.before)
            off, rounding = self._distance(here[:end], alone[:end], first[:end])
            # Rounding grows with each step: Adam moves weights without a gradient as far as others.
            if not off <= min(0.5, self._tolerance * 2.0**step) + rounding:
                apart = np.abs((here - alone)[:end]) * self._sizes
                place = int(np.searchsorted(self._ends, int(apart.argmax()), side="right")) - 1
                return Verdict(WEIGHTS, step, off, place, self.before)
            worst = max(worst, off)
        return Verdict(HOLDS, steps, worst, 0, self.before)

    def _distance(
        self, here: np.ndarray, alone: np.ndarray, before: np.ndarray
    ) -> tuple[float, float]:
        """Return the distance of two results, as a fraction of the second one's movement, and how
        much of it may be rounding of weights that hardly move. All parameters count together: Adam
        moves a parameter whose gradient is zero but for rounding, such as a bias before batch norm,
        as far as any other."""
        moved, size = (float(np.linalg.norm(v * self._sizes)) for v in (alone - before, alone))
        off = float(np.linalg.norm((here - alone) * self._sizes))
        if moved <= _STILL * size:
            return (0.0 if off <= 10 * _STILL * size else math.inf), 0.0
        return off / moved, self._rounding * size / moved

    def _values(self, noise: bool = False) -> np.ndarray:
        """Return a few values of each parameter, the rates, and whether there was noise."""
        with torch.no_grad():
            found = [
                torch.view_as_real(v).flatten()[::2] if v.is_complex() else v
                for p, places in zip(self._parameters, self._places, strict=True)
                for v in [p.detach().reshape(-1)[places]]
            ]
            rates = [float(g["lr"]) for o in self._optimizers for g in o.param_groups]
            rates = [*rates, *[0.0] * self._groups][: self._groups]
            values = torch.cat([v.double() for v in found]).numpy() if found else np.zeros(0)
        return np.concatenate([values, rates, [float(noise)]])


def _places(parameter: Tensor) -> Tensor:
    count = parameter.numel()
    return torch.arange(count)[:: max(1, math.ceil(count / _VALUES))]
