"""The first steps of a training in view ``whole``, done by one process as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from phalanx.core.errors import PhalanxError
from phalanx.train.proof.proof import Proof, Verdict
from phalanx.train.whole.whole_engine import WholeEngine


class FirstSteps:
    """Of one worker, or of the child that goes on alone."""

    def __init__(self) -> None:
        self._proof: Proof | None = None
        self._engine: WholeEngine | None = None
        self.is_child = self._said = False

    def begin(self, engine: WholeEngine, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """Whether this is the child from now on."""
        self._engine = engine
        self._proof = Proof(optimizers, forks=engine.copy == 1)
        self.is_child = engine.copy == 1 and self._proof.fork()
        return self.is_child

    def alone(self, plain: Callable[..., Any], *given: Any, **kwargs: Any) -> Any:
        """A step of the child."""
        found = plain(*given, **kwargs)
        if self._proof is not None:
            self._proof.note_alone()
        return found

    def compare(self, say_once: Callable[[str], None], names: Callable[[], list[str]]) -> None:
        """After a step of the workers: what was found is said once."""
        if self._proof is None or self._engine is None:
            return
        self._say(self._engine.pass_on(self._proof.note()), say_once, names)

    def end(self, say_once: Callable[[str], None], names: Callable[[], list[str]]) -> None:
        """The training is over; a child has nothing more to do."""
        if self._proof is None or self._engine is None:
            return
        if self.is_child:
            self._proof.end_alone()
        self._engine.pass_on(self._proof.last())
        with suppress(PhalanxError):  # another one has failed, and will say so
            self._engine.collective.sum(torch.zeros(1))
            self._say(self._engine.pass_on(None), say_once, names)
        self._proof = None

    def _say(
        self, found: Verdict | None, say: Callable[[str], None], names: Callable[[], list[str]]
    ) -> None:
        if found is not None and found.steps and not self._said:
            self._said = True
            say(found.words(names()))
