"""Tells users about long waits, and ends those without progress."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from phalanx.core.errors import MachineError
from phalanx.core.terminal import Say
from phalanx.pool.machine import Machine

Doing = Callable[[], str]
"""Says what is being done, for example "copying the data"."""
FIRST_WORD = 20.0
EACH_WORD = 60.0


@contextlib.asynccontextmanager
async def telling(
    say: Say, words: Callable[[], str], last_sign: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[None]:
    """Say ``words()`` when this context has lasted 20 s, then every minute.

    ``last_sign``: when progress was last shown (monotonic); for 20 s after that nothing is said.
    """
    task = asyncio.create_task(_tell(say, words, last_sign))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _tell(say: Say, words: Callable[[], str], last_sign: Callable[[], float]) -> None:
    due = time.monotonic() + FIRST_WORD
    while True:
        await asyncio.sleep(due - time.monotonic())
        due = last_sign() + FIRST_WORD
        if due <= time.monotonic():
            say(words())
            due = time.monotonic() + EACH_WORD


class MachineWait:
    """Waits for one machine, which was asked for something that may take long."""

    def __init__(self, machine: Machine, say: Say) -> None:
        self.say, self._machine = say, machine
        self._noted = 0.0
        """When the machine itself last reported progress."""
        self._limits: dict[asyncio.Timeout, float] = {}

    @contextlib.asynccontextmanager
    async def patiently(self, doing: Doing, seconds: float) -> AsyncIterator[None]:
        """Say ``doing()`` in a long wait; raise an error after ``seconds`` without progress."""

        def words() -> str:
            return f"waiting for {self._machine.name}: {doing()}"

        try:
            async with (
                telling(self.say, words, lambda: self._noted),
                asyncio.timeout(seconds) as limit,
            ):
                self._limits[limit] = seconds
                try:
                    yield
                finally:
                    del self._limits[limit]
        except TimeoutError:
            raise MachineError(
                f"{self._machine.name} has made no progress for {seconds:.0f} seconds: {doing()}",
                "Check how busy it is, and whether its disk responds.",
            ) from None

    def heard(self, told: str) -> None:
        """Count what the agent sends, except samples, as progress of the requests that wait."""
        if told == "sample":
            return
        now = asyncio.get_running_loop().time()
        for limit, seconds in self._limits.items():
            if not limit.expired():
                limit.reschedule(now + seconds)
        if told == "note":
            self._noted = time.monotonic()
