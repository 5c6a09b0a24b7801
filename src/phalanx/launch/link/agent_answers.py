"""What comes from an agent: answers to requests, and what it sends unasked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from phalanx.core.errors import MachineError
from phalanx.launch.link.agent_frames import AgentProblem
from phalanx.launch.link.agent_loss import without_controls

Reply = tuple[dict[str, Any], bytes]
Taker = Callable[[str, dict[str, Any], bytes], bool]
"""Whether what the agent sent was for it."""


class AgentRefused(MachineError):  # noqa: N818  (what was answered)
    """The agent says why it does not do what it is asked."""


class PendingAnswers:
    """Awaited answers by number; an answer that came too late is dropped."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}

    @contextmanager
    def expected(self) -> Iterator[tuple[int, asyncio.Future[Reply]]]:
        """The number of a request, and its answer to come."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            yield number, answer
        finally:
            del self._waiting[number]

    def resolve(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result((header, payload))

    def refuse(self, number: int, problem: AgentProblem) -> None:
        cause = f"{self._machine}: {without_controls(problem.cause)}"
        self._fail(self._waiting.get(number), AgentRefused(cause, without_controls(problem.remedy)))

    def fail_all(self, error: MachineError) -> None:
        for waiting in self._waiting.values():
            self._fail(waiting, error)

    def _fail(self, waiting: asyncio.Future[Reply] | None, error: MachineError) -> None:
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


class AgentListener:
    """What a link notices unasked; does nothing until overridden."""

    def on_tell(self, name: str, fields: dict[str, Any], payload: bytes) -> None:
        """The agent sent something that was not an answer."""

    def on_lost(self, error: MachineError) -> None:
        """The agent is gone; not called while it is closed."""

    def on_gap(self, seconds: float) -> None:
        """This computer itself did not run for so long."""

    def say(self, text: str) -> None:
        """A request takes long."""
