"""Reconnects to machines that were lost for a while: the network was cut, or this computer slept.

Meanwhile their agents and workers go on, and agents keep everything that they could not send.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable

from phalanx.core.errors import InputError, MachineError, PhalanxError
from phalanx.core.terminal import Say
from phalanx.launch.link.agent_link import PATIENCE
from phalanx.launch.machines.machine_session import MachineSession

VARIABLE = "PHALANX_RECONNECT"
SECONDS = 120.0
LEAST = PATIENCE + 2.0
"""The fewest seconds to try: an agent needs ``PATIENCE`` to notice that its controller is gone."""
SETTLED = PATIENCE + 4.0
"""Seconds until an agent has surely noticed that its controller is gone."""
BETWEEN = 1.0
ATTEMPT_SECONDS = 15.0
ONE_GAP = 5.0
"""Seconds within which all links notice the same gap; it is reported once."""


class Unreached(MachineError):  # noqa: N818  (what happened)
    """A machine was not reached again within the allowed time; its workers may still run."""


def reconnect_seconds() -> float:
    """Return for how many seconds to try to reconnect; 0: not at all."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InputError(f"{VARIABLE} must be seconds, not '{text}'", f"Try {VARIABLE}=120.")
    return max(seconds, LEAST) if seconds else 0.0


class Absences:
    """The machines that do not answer, and how long the run waits for them."""

    def __init__(self, run_id: str, seconds: float, say: Say) -> None:
        self.seconds = seconds
        self.alone: MachineError | None = None
        """Why this computer leaves the run to its machines; ``None`` if it does not."""
        self._id, self._say = run_id, say
        self._away: dict[str, tuple[MachineSession, MachineError]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slept = -math.inf

    @property
    def names(self) -> set[str]:
        return set(self._away)

    @property
    def lost(self) -> dict[int, MachineError]:
        """Return the ranks of machines that are away, each with the reason."""
        found = list(self._away.values())
        return {rank: error for member, error in found for rank in member.ranks}

    def slept(self, seconds: float, *, leave: bool) -> None:
        """Note that this computer slept; ``leave``: after a long sleep, leave the run alone."""
        if time.monotonic() - self._slept < ONE_GAP:
            return
        self._slept = time.monotonic()
        self._say(f"this computer slept, or this command was stopped, for {seconds:.0f} s")
        if leave and self.seconds and seconds > self.seconds:
            self.give_up(f"that is more than {self.seconds:.0f} s ({VARIABLE})")

    def give_up(self, cause: str) -> None:
        self.alone = self.alone or MachineError(
            f"{cause}; the run goes on without this computer",
            f"Follow it again: phalanx attach {self._id}",
        )

    def wait_for(
        self, member: MachineSession, error: MachineError, lose: Callable[[MachineError], None]
    ) -> None:
        """Try to reach a machine again; call ``lose`` if that fails."""
        self._away[member.name] = member, error
        task = asyncio.create_task(self._bring_back(member, error, lose))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A machine that answers again soon after a sleep of this computer is not reported.
        pause = max(0.0, self._slept + SETTLED - time.monotonic())
        words = f"{error.cause}; trying for {self.seconds:.0f} s to reach it again"
        word = asyncio.get_running_loop().call_later(pause, self._say, words)
        task.add_done_callback(lambda _: word.cancel())

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _bring_back(
        self, member: MachineSession, error: MachineError, lose: Callable[[MachineError], None]
    ) -> None:
        began = time.monotonic()
        while time.monotonic() - began < self.seconds:
            try:
                back = await member.reconnect(ATTEMPT_SECONDS)
            except (PhalanxError, OSError, TimeoutError):
                back = None
            if back:
                del self._away[member.name]
                self._say(f"{member.name} is connected again; events and logs are complete")
                return
            if back is False and time.monotonic() - began > SETTLED:
                words = f"the agent on {member.name} has ended, or is stopped"
                error = MachineError(words, error.remedy)
                break
            await asyncio.sleep(BETWEEN)
        else:
            words = f"{member.name} was not reached again within {self.seconds:.0f} s"
            error = Unreached(words, error.remedy)
        del self._away[member.name]
        lose(error)
