"""Readings of machines on which nothing runs: an agent on each sends one a second.

The agents are those of runs; each ends with its connection. A machine that does not answer is tried
again, at growing intervals.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from phalanx.core.errors import MachineError, PhalanxError
from phalanx.core.terminal import Say
from phalanx.launch.link.agent_frames import AgentListener
from phalanx.launch.link.agent_link import AgentLink, open_agent
from phalanx.launch.link.event_loop import EventLoop
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.monitor import sample_of
from phalanx.pool.machine import Machine

START_SECONDS = 30.0
SHORTEST_WAIT, LONGEST_WAIT = 2.0, 60.0
LEAVE_SECONDS = 0.5
"""Seconds for all agents to end in order; then their connections are cut, which ends them too."""

Take = Callable[[str, MachineSample | None], None]
"""Is given a machine's name and a reading; ``None`` if it does not answer."""


class _Hearer(AgentListener):
    """Passes on the readings that one agent sends."""

    def __init__(self, machine: Machine, take: Take) -> None:
        self._machine, self._take = machine, take
        self.link: AgentLink | None = None
        self.lost = asyncio.Event()

    def on_tell(self, name: str, fields: dict[str, Any], payload: bytes) -> None:
        if name == "sample" and self.link is not None:
            with contextlib.suppress(msgspec.ValidationError):
                self._take(self._machine.name, sample_of(fields, self.link.clock_offset))

    def on_lost(self, error: MachineError) -> None:
        self.lost.set()


@contextlib.contextmanager
def readings(machines: Sequence[Machine], take: Take, note: Say) -> Iterator[None]:
    """Within the ``with`` block, have all machines read; ``take`` is called in another thread."""
    loop = EventLoop()
    work = loop.submit(_read_all(machines, take, note))
    try:
        yield
    finally:
        work.cancel()
        ending = loop.submit(_others_ended())
        with contextlib.suppress(concurrent.futures.TimeoutError, PhalanxError):
            ending.result(2 * LEAVE_SECONDS)
            loop.close()


async def _read_all(machines: Sequence[Machine], take: Take, note: Say) -> None:
    async with asyncio.TaskGroup() as group:
        for machine in machines:
            group.create_task(_read(machine, take, note))


async def _others_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=LEAVE_SECONDS)


async def _read(machine: Machine, take: Take, note: Say) -> None:
    """Read one machine until this is cancelled."""
    wait, known = SHORTEST_WAIT, ""
    take(machine.name, None)  # until it has answered
    while True:
        try:
            await _listen(machine, take)
            wait, known = SHORTEST_WAIT, ""
        except PhalanxError as error:
            if error.cause != known:
                known = error.cause
                note(f"{error.cause}. {error.remedy}".rstrip())
        take(machine.name, None)
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


async def _listen(machine: Machine, take: Take) -> None:
    """Start an agent, and pass on what it reads until it is lost."""
    hearer = _Hearer(machine, take)
    link = await open_agent(machine, run=None, timeout=START_SECONDS, listener=hearer)
    try:
        hearer.link = link
        await link.ask("sample", on=True)
        await hearer.lost.wait()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await link.close(grace=0.0)
