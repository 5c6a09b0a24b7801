"""Where workers meet: a barrier at which all of them have to mean the same.

Without it a script that goes another way on one worker would make barriers of different kinds
pair up, and mix gradients with evaluations or wait for ever.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from phalanx.core.errors import InputError
from phalanx.sync.transport.arena import Arena

# What a worker is about to do with the others; numbers from 0 are steps of that optimizer.
FOLLOW, BATCH_DONE, EVALUATE, EPOCH_DONE, SWITCH, FINISH = -1, -2, -3, -4, -5, -6
_WORDS = {
    FOLLOW: "has no samples left",
    BATCH_DONE: "is done with its batch",
    EVALUATE: "evaluates",
    EPOCH_DONE: "ends its epoch",
    SWITCH: "switches the strategy",
    FINISH: "has finished",
}


class Meeting:
    """One per training; its memory is new each time, so nothing is left over from the last."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._count = arena, 0
        # Two rows in turn: a worker can be one meeting ahead of another, but never two.
        self._rows = arena.region("intents", 2 * arena.workers, torch.int64).view(2, -1).numpy()
        self._left = arena.region("left", arena.workers, torch.uint8).numpy()

    def announce(self, intent: int) -> None:
        self._count += 1
        self._rows[self._count % 2, self._arena.rank] = intent

    def wait(self) -> int:
        """The barrier for what was announced; returns what the others mean to do."""
        self._arena.barrier(self._someone_left)
        meant = {int(intent) for intent in self._rows[self._count % 2]} - {FOLLOW}
        if len(meant) > 1:
            self.disagree()
        return meant.pop()

    def meet(self, intent: int) -> None:
        self.announce(intent)
        self.wait()

    def leave(self) -> None:
        """This worker comes to no further meeting; whoever waits for it is told so."""
        self._left[self._arena.rank] = 1

    def _someone_left(self) -> bool:
        return bool(self._left.any())

    def disagree(self) -> NoReturn:
        row = self._rows[self._count % 2].tolist()
        other = next(rank for rank, intent in enumerate(row) if intent != row[0])
        words = [_WORDS.get(row[rank], "updates the parameters") for rank in (0, other)]
        raise InputError(
            f"the workers went different ways: worker 0 {words[0]}, worker {other} {words[1]}",
            "Every worker has to step, evaluate and end its epochs as often as the others; "
            "run.stop() ends training for all.",
        )
