"""A link that calls the agent's handlers directly, and counts, cuts or garbles what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.agent.frames import RequestProblem
from phalanx.agent.main import HANDLERS
from phalanx.agent.storage import (
    blobs,
)
from phalanx.core.errors import MachineError
from phalanx.launch.link.agent_frames import AgentListener
from phalanx.launch.link.progress_notes import MachineWait
from phalanx.pool.machine import Machine


class NearAgent:
    """What handlers know of an agent."""

    def __init__(self, folder: Path, run: str, link: NearLink) -> None:
        self.name, self.folder = link.machine.name, folder
        self.run_folder = folder / "runs" / run
        for name in ("files", "events", "logs"):
            (self.run_folder / name).mkdir(parents=True, exist_ok=True)
        self._link = link

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        for take in self._link.takers:
            take(header["tell"], header, payload)

    def tell(self, name: str, **fields: Any) -> None:
        self.send({"tell": name, **fields})


class NearLink:
    """The connection to a machine whose agent is in this process."""

    def __init__(self, folder: Path, name: str = "m1", run: str = "run-1") -> None:
        self.machine = Machine(name=name, host="192.0.2.1")
        self.folder = str(folder)
        self.waiting = MachineWait(self.machine, lambda text: None)
        self.takers: list[Callable[[str, dict[str, Any], bytes], bool]] = []
        self.sent = 0
        self.cut_after: int | None = None
        self.garble: Callable[[int, bytes], bytes] = lambda offset, piece: piece
        self.agent = NearAgent(folder, run, self)

    @contextmanager
    def diverted(self, take: Callable[[str, dict[str, Any], bytes], bool]) -> Iterator[None]:
        self.takers.append(take)
        yield
        self.takers.remove(take)

    async def ask(
        self, name: str, *, timeout: float = 10.0, payload: bytes = b"", **fields: Any
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout):
                answer = await asyncio.to_thread(HANDLERS[name], self.agent, fields, payload)
        except RequestProblem as problem:
            raise MachineError(f"{self.machine.name}: {problem.cause}", problem.remedy) from None
        return dict(answer)

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        if self.cut_after is not None and self.sent + len(payload) > self.cut_after:
            raise MachineError(f"{self.machine.name} is gone", "")
        self.sent += len(payload)
        HANDLERS[header["ask"]](self.agent, header, self.garble(header["offset"], payload))


def reopen(link: NearLink) -> NearLink:
    """A new agent on the same machine, with what the old one left on its disk."""
    blobs._stores.pop(str(link.agent.folder)).drop_incoming()
    return NearLink(link.agent.folder, link.machine.name)


class Hearing(AgentListener):
    """A listener made of functions."""

    def __init__(
        self,
        tell: Callable[[str, dict[str, Any], bytes], None] = lambda name, fields, payload: None,
        lost: Callable[[MachineError], None] = lambda error: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._tell, self._lost, self._say = tell, lost, say

    def on_tell(self, name: str, fields: dict[str, Any], payload: bytes) -> None:
        self._tell(name, fields, payload)

    def on_lost(self, error: MachineError) -> None:
        self._lost(error)

    def say(self, text: str) -> None:
        self._say(text)
