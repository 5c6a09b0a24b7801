"""Where workers meet: a barrier at which all of them have to mean the same.

Without it a script that goes another way on one worker would make barriers of different kinds
pair up, and mix gradients with evaluations or wait for ever. What everybody has to decide alike
travels the same way: at a meeting all members hear the same figures and the same command.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from phalanx.core.errors import InputError
from phalanx.sync.transport.arena import Arena, Circle

# What a worker is about to do with the others; numbers from 0 are steps of that optimizer.
EVALUATE, EPOCH_DONE, SWITCH, FINISH, ROUND, SAVE, CUT, UNFREEZE, LOAD, GATHER = range(-1, -11, -1)
READ = -100
"""And below: reads gradients of the optimizer ``READ - intent``."""
AGREED = 1 << 16
"""And above: steps of the optimizer ``intent - AGREED``, whose gradient all have."""
_WORDS = {
    EVALUATE: "evaluates",
    EPOCH_DONE: "ends its epoch",
    SWITCH: "switches the strategy",
    FINISH: "has finished",
    ROUND: "ends a round",
    SAVE: "saves a checkpoint",
    CUT: "takes a command",
    UNFREEZE: "trains other parameters than before",
    LOAD: "loads an optimizer's state",
    GATHER: "gathers values",
}

SPEED, STEPS, SAMPLES, BUSY, WHOLE = FIGURES = range(5)
"""Figures of a worker: samples a second of its own work; then sums since it began: steps, their
samples, the seconds of its own work, and those with the exchange and all waiting."""

Hear = Callable[[Any, int], None]


class Meeting:
    """One per team of a training; its memory is new each time."""

    def __init__(self, arena: Arena, circle: Circle, members: Sequence[int]) -> None:
        self._arena, self._circle, self._members = arena, circle, list(members)
        self._count = 0
        # Two rows in turn: a worker can be one meeting ahead of another, but never two.
        self._rows = arena.region("intents", 2 * arena.workers, torch.int64).view(2, -1).numpy()
        told = arena.region("figures", 2 * arena.workers * len(FIGURES), torch.float64)
        self._told = told.view(2, arena.workers, -1).numpy()
        self._posted = arena.region("posted", 2 * arena.workers, torch.int64).view(2, -1).numpy()
        self._options = (
            arena.region("options", 2 * arena.workers, torch.float64).view(2, -1).numpy()
        )
        self._left = arena.region("left", arena.workers, torch.uint8).numpy()
        self.figures = [0.0] * len(FIGURES)
        """Of this worker."""
        self.command = 0
        """The number of the newest command that this worker knows."""
        self.options = 0.0
        """A digest of this worker's learning rates and other settings of its optimizers."""
        self.hear: Hear | None = None
        """Called at each meeting with the figures of all members (a row each, which lasts until
        the next but one) and their newest command."""

    def announce(self, intent: int) -> None:
        self._count += 1
        row, rank = self._count % 2, self._arena.rank
        self._rows[row, rank] = intent
        self._told[row, rank] = self.figures
        self._posted[row, rank] = self.command
        self._options[row, rank] = self.options

    def wait(self) -> int:
        """The barrier for what was announced; returns what the others mean to do."""
        self._circle.wait(self.someone_left)
        row = self._count % 2
        present = [member for member in self._members if member not in self._arena.lost]
        meant = {int(self._rows[row, member]) for member in present}
        if len(meant) != 1:
            self.disagree()
        intent = meant.pop()
        if intent >= 0 or intent == EPOCH_DONE:
            every = self._options[row].tolist()
            options = [every[member] for member in present]
            if options.count(options[0]) != len(options):
                self._differ(present, options)
        if self.hear is not None:
            command = max(int(self._posted[row, member]) for member in present)
            self.hear(self._told[row, self._members], command)
        return intent

    def _differ(self, present: list[int], options: list[float]) -> NoReturn:
        other = next(m for m, o in zip(present, options, strict=True) if o != options[0])
        raise InputError(
            f"the learning rates or other settings of the optimizers differ between worker "
            f"{present[0]} and worker {other}",
            "Change them by a figure that is the same on all workers: run.evaluate(…), "
            "run.reduce(…), or the epoch.",
        )

    def meet(self, intent: int) -> None:
        self.announce(intent)
        self.wait()

    def leave(self) -> None:
        """This worker comes to no further meeting; whoever waits for it is told so."""
        self._left[self._arena.rank] = 1
        self._arena.wake()  # between machines nobody would see it otherwise

    def someone_left(self) -> bool:
        """Whether a member comes to no further meeting."""
        return bool(self._left[self._members].any())

    def disagree(self) -> NoReturn:
        row = [int(intent) for intent in self._rows[self._count % 2]]
        first = self._members[0]
        others = (member for member in self._members if row[member] != row[first])
        other = next(others, self._members[-1])
        words = [_word(row[rank]) for rank in (first, other)]
        raise InputError(
            f"the workers went different ways: worker {first} {words[0]}, "
            f"worker {other} {words[1]}",
            "Every worker has to step, evaluate, read gradients and end its epochs as often as the "
            "others; run.stop() ends training for all.",
        )


def _word(intent: int) -> str:
    if intent <= READ:
        return "reads gradients"
    return _WORDS.get(intent, "updates the parameters")


class Options:
    """A number that differs where learning rates, momentum and the like do."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._known: list[list[object]] = []
        self._digest = 0.0

    def digest(self) -> float:
        values = [
            [_number(value) for name, value in group.items() if name != "params"]
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]
        if values != self._known:
            self._known, self._digest = values, float(zlib.crc32(repr(values).encode()))
        return self._digest


def _number(value: object) -> object:
    """Of a rate that is a tensor; one on an accelerator is not waited for."""
    if isinstance(value, int | float | tuple):
        return value
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1:
        return float(value)
    return None
