"""Reconnects to machines that were lost for a while: the network was cut, or this computer slept.

Their agents and workers go on. An agent that is reached again has kept all that is missing here.
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
"""The least seconds to reconnect: agents notice only by their patience that they are alone."""
SETTLED = PATIENCE + 4.0
"""Seconds until an agent surely knows that it is alone."""
BETWEEN = 1.0
ATTEMPT_SECONDS = 15.0
ONE_GAP = 5.0
"""Seconds in which links notice the same gap one after the other."""


class Unreached(MachineError):  # noqa: N818  (what happened)
    """A machine did not answer for as long as it was waited for; its workers may go on."""


def reconnect_seconds() -> float:
    """Return the seconds that the user set; 0: never."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InputError(f"{VARIABLE} must be seconds, not '{text}'", f"Try {VARIABLE}=120.")
    return max(seconds, LEAST) if seconds else 0.0


class Absences:
    """The machines that are away, and how long that may last."""

    def __init__(self, run_id: str, seconds: float, say: Say) -> None:
        self.seconds = seconds
        self.alone: MachineError | None = None
        """Why this computer gives up, and leaves the run to its machines."""
        self._id, self._say = run_id, say
        self._away: dict[str, tuple[MachineSession, MachineError]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slept = -math.inf

    @property
    def names(self) -> set[str]:
        return set(self._away)

    @property
    def lost(self) -> dict[int, MachineError]:
        """Return why a rank is away, by rank."""
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
        """Try to reach a machine again; call ``lose`` if that is in vain."""
        self._away[member.name] = member, error
        task = asyncio.create_task(self._bring_back(member, error, lose))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A machine that is back soon after this computer slept is not worth a line.
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
