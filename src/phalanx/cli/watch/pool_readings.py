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

from phalanx.core.errors import PhalanxError
from phalanx.core.terminal import Say
from phalanx.launch.link.agent_link import open_agent
from phalanx.launch.link.event_loop import EventLoop
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.monitor import sample_of
from phalanx.pool.machine import Machine

START_SECONDS = 30.0
LOOK_SECONDS = 1.0
SHORTEST_WAIT, LONGEST_WAIT = 2.0, 60.0
LEAVE_SECONDS = 0.5
"""Seconds for all agents to end in order; then their connections are cut, which ends them too."""

Take = Callable[[str, MachineSample | None], None]
"""Is given a machine's name and a reading; ``None`` if it does not answer."""


@contextlib.contextmanager
def readings(machines: Sequence[Machine], take: Take, note: Say) -> Iterator[None]:
    """Within the ``with`` block, have all machines read; ``take`` is called in another thread."""
    loop = EventLoop()
    work = [loop.submit(_read(machine, take, note)) for machine in machines]
    try:
        yield
    finally:
        for reading in work:
            reading.cancel()
        with contextlib.suppress(concurrent.futures.TimeoutError):
            loop.submit(_others_ended()).result(2 * LEAVE_SECONDS)
            loop.close()


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

    def heard(name: str, fields: dict[str, Any], payload: bytes) -> bool:
        if name == "sample":
            with contextlib.suppress(msgspec.ValidationError):
                take(machine.name, sample_of(fields, link.clock_offset))
        return name == "sample"

    link = await open_agent(machine, run=None, timeout=START_SECONDS)
    try:
        with link.diverted(heard):
            await link.ask("sample", on=True)
            while link.lost is None:
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await link.close(grace=0.0)
