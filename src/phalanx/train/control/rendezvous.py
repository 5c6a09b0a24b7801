"""Lets workers meet: a barrier at which all of them have to intend the same.

Otherwise, if a script took another path on one worker, barriers of different kinds would pair up,
and gradients mix with evaluations, or workers wait for ever. A rendezvous also serves common
decisions: all members see the same figures and the same newest directive.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from phalanx.core.errors import InputError
from phalanx.sync.arena.arena import Arena, SubsetBarrier

# What a worker is about to do with the others. Numbers from 0 are steps of that optimizer.
EVALUATE, EPOCH_DONE, SWITCH, FINISH, ROUND, SAVE, CUT = range(-1, -8, -1)
UNFREEZE, LOAD, GATHER, WRITE, DECIDE, BEGIN_PASS, END_PASS = range(-8, -15, -1)
READ = -100
"""From this number down: the worker reads gradients of optimizer ``READ - intent``."""
CLIP = -5_000
"""From this number down: the worker clips gradients of optimizer ``CLIP - intent``."""
LEFT = -10_000
"""From this number down: the worker left its pass over the data after ``LEFT - intent`` samples."""
AGREED = 1 << 16
"""From this number up: a step with the agreed gradient of optimizer ``intent - AGREED``."""
_WORDS = {
    EVALUATE: "evaluates",
    EPOCH_DONE: "ends its epoch",
    SWITCH: "switches the strategy",
    FINISH: "has finished",
    ROUND: "ends a round",
    SAVE: "saves a checkpoint",
    CUT: "takes a directive",
    UNFREEZE: "changed which parameters it trains",
    LOAD: "loads an optimizer's state",
    WRITE: "changes the weights itself",
    DECIDE: "asks whether to save a checkpoint",
    GATHER: "gathers values",
    BEGIN_PASS: "begins a pass over its data",
    END_PASS: "has ended its pass over the data",
}

SPEED, STEPS, SAMPLES, BUSY, WHOLE = FIGURES = range(5)
"""Indices of a worker's figures: samples per second of its own work, then sums since it began:
steps, their samples, seconds of its own work, and seconds including exchanges and all waiting."""


Attended = Callable[[Any, int], None]
"""Called after each rendezvous with the figures of all members (a row each, which lasts until the
next rendezvous but one), and the number of their newest directive."""


class Rendezvous:
    """The meeting point of one team in one training; each training has new memory for it."""

    def __init__(
        self,
        arena: Arena,
        barrier: SubsetBarrier,
        members: Sequence[int],
        attended: Attended | None = None,
    ) -> None:
        self._arena, self._barrier, self._members = arena, barrier, list(members)
        self._attended = attended
        self._count = 0
        # Two rows in turn, because a worker can be one rendezvous ahead of another, but never two.
        columns = 3 + len(FIGURES)  # the intent, the directive, the options
        told = arena.region("rendezvous", 2 * arena.workers * columns, torch.float64)
        self._told = told.view(2, arena.workers, columns).numpy()
        whole = self._members == list(range(arena.workers))
        self._rows: slice | list[int] = slice(None) if whole else self._members
        self._left = arena.region("left", arena.workers, torch.uint8).numpy()
        self.figures = [0.0] * len(FIGURES)
        """This worker's figures."""
        self.directive = 0
        """The number of the newest directive that this worker knows."""
        self.options = 0.0
        """A digest of the settings of this worker's optimizers (learning rates and others), whose
        fraction stands for the batch that the worker has a part of."""

    def announce(self, intent: int) -> None:
        self._count += 1
        row = (intent, self.directive, self.options, *self.figures)
        self._told[self._count % 2, self._arena.rank] = row

    def wait(self) -> int:
        """Wait for all members to announce; return the intent, which must be the same for all."""
        self._barrier(self.someone_left)
        row, lost = self._told[self._count % 2], self._arena.lost
        present = [m for m in self._members if m not in lost] if lost else self._members
        told = row[:, :3].tolist()
        meant, directives, options = zip(*map(told.__getitem__, present), strict=True)
        if meant.count(meant[0]) != len(meant):
            self.disagree()
        intent = int(meant[0])
        differ = options.count(options[0]) != len(options)
        if differ and (intent >= 0 or intent == EPOCH_DONE):
            other = next(m for m, o in zip(present, options, strict=True) if o != options[0])
            if all(int(option) == int(options[0]) for option in options):
                raise InputError(
                    f"worker {present[0]} and worker {other} step with parts of different batches: "
                    "one of them has left out a batch",
                    "Leave out a batch on all workers or on none: a condition on data or loss "
                    "depends on each worker's part of the batch.",
                )
            raise InputError(
                f"the learning rates or other settings of the optimizers differ between worker "
                f"{present[0]} and worker {other}",
                "Change them by a value that is the same on all workers: run.evaluate(…), "
                "run.reduce(…), or the epoch.",
            )
        if self._attended is not None:
            self._attended(row[self._rows, 3:], int(max(directives)))
        return intent

    def meet(self, intent: int) -> None:
        self.announce(intent)
        self.wait()

    def leave(self) -> None:
        """Come to no further rendezvous; those that wait for this worker find out."""
        self._left[self._arena.rank] = 1
        self._arena.wake()  # otherwise other machines would not see it

    def someone_left(self) -> bool:
        """Whether a member comes to no further rendezvous."""
        return bool(self._left[self._members].any())

    def disagree(self) -> NoReturn:
        row = [int(intent) for intent in self._told[self._count % 2, :, 0]]
        first = self._members[0]
        others = (member for member in self._members if row[member] != row[first])
        other = next(others, self._members[-1])
        words = [_word(row[rank]) for rank in (first, other)]
        raise InputError(
            f"the workers diverged: worker {first} {words[0]}, worker {other} {words[1]}",
            "Every worker has to step, evaluate, read gradients and end its epochs as often as the "
            "others; run.stop() ends training for all.",
        )


def _word(intent: int) -> str:
    if intent <= LEFT:
        return f"left its loop after {LEFT - intent} samples of the pass"
    if intent <= READ:
        return "clips gradients" if intent <= CLIP else "reads gradients"
    return _WORDS.get(intent, "updates the parameters")


class OptimizerDigest:
    """Computes a number that differs if learning rates, momentum and the like do."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._known: list[object] = []
        self._digest = 0.0

    def digest(self) -> float:
        values: list[object] = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                values += group.values()
        # These are the same objects as last time, so nothing was set since, unless it is a tensor.
        if len(values) != len(self._known) or not all(map(operator.is_, values, self._known)):
            self._digest = float(zlib.crc32(repr([_number(v) for v in values]).encode()))
            changeable = any(isinstance(value, torch.Tensor) for value in values)
            self._known = [] if changeable else values
        return self._digest


def _number(value: object) -> object:
    """Return a number, also of a CPU tensor; ``None`` for the rest, so as to wait for no GPU."""
    if isinstance(value, int | float | tuple):
        return value
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1:
        return float(value)
    return None
