"""The controller's end of the connection to an agent: requests, answers, notices and the loss.

Machines are not trusted: one that sends a frame that no agent would send counts as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import msgspec

from phalanx.core.errors import MachineError
from phalanx.launch.link import agent_frames as frames
from phalanx.launch.link import agent_loss as loss
from phalanx.launch.link.clocks import ClockOffset
from phalanx.launch.link.progress_notes import Doing, MachineWait
from phalanx.launch.ssh.ssh_command import RunningCommand, start_command
from phalanx.launch.ssh.ssh_connect import CONNECT_SECONDS
from phalanx.pool.machine import Machine

PATIENCE = 8.0
PING_SECONDS = 1.0
OWN_GAP = 4.0
"""A ping that is so many seconds late means that this computer slept, not only was busy."""
FIRST_PINGS = 4
HELLO_SECONDS = 20.0
"""Seconds for the machine's Python to start and answer: a small one under load takes long."""
ASK_SECONDS = 10.0
LEAVE_SECONDS = 6.0
END_SECONDS = 3.0


class AgentLink:
    """A connection to an agent; leaving ``async with`` ends the agent and its workers."""

    def __init__(
        self, command: RunningCommand, patience: float, listener: frames.AgentListener
    ) -> None:
        self.machine = command.machine
        self.hello: dict[str, Any] = {}
        """The agent's first answer: ``pid``, ``folder``, ``workers`` and ``codes``, or ``gone``."""
        self.lost: MachineError | None = None
        self.waiting = MachineWait(self.machine, listener.say)
        self._command, self._patience, self._listener = command, patience, listener
        self._takers: list[frames.Taker] = []
        self._heard = time.monotonic()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[frames.Reply]] = {}
        """Requests that wait for answers, by number."""
        self._clock = ClockOffset()
        self._closing = False
        self._ended = False
        """Whether the agent's output has ended, so that there is no process left to kill."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str | None:
        """The address at which the machine was reached; ``None`` for this machine."""
        return self._command.address

    @property
    def reached_from(self) -> str | None:
        """This machine's own address in the connection to the agent's machine."""
        return self._command.reached_from

    @property
    def folder(self) -> str:
        """The folder on the machine in which Phalanx keeps everything."""
        return str(self.hello.get("folder"))

    @property
    def clock_offset(self) -> float:
        """Seconds to add to the machine's monotonic clock to get ours."""
        return self._clock.seconds

    async def ask(
        self,
        name: str,
        *,
        timeout: float = ASK_SECONDS,
        doing: Doing | None = None,
        payload: bytes = b"",
        **fields: Any,
    ) -> dict[str, Any]:
        """Return the answer's fields; raise ``MachineError`` for a problem, a loss or no answer.

        With ``doing``, a text for long waits, ``timeout`` limits only the time without progress.
        """
        request = {"ask": name, **fields}
        if doing is None:
            return (await self.request(request, payload, timeout=timeout))[0]
        async with self.waiting.patiently(doing, timeout):
            return (await self.request(request, payload, timeout=None))[0]

    async def request(
        self, header: dict[str, Any], payload: bytes = b"", *, timeout: float | None = ASK_SECONDS
    ) -> frames.Reply:
        """Send a request; return the fields of its answer, and the bytes that came with it."""
        number = next(self._numbers)
        answer: asyncio.Future[frames.Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout):
                await self.send({**header, "id": number}, payload)
                return await answer
        except TimeoutError:
            raise MachineError(
                f"{self.machine.name} did not answer '{header['ask']}' within "
                f"{timeout or 0.0:.0f} seconds",
                "Check whether it is up and how busy it is.",
            ) from None
        finally:
            del self._waiting[number]

    @contextlib.contextmanager
    def diverted(self, take: frames.Taker) -> Iterator[None]:
        """Within this context, offer to ``take`` first what the agent sends unasked."""
        self._takers.append(take)
        try:
            yield
        finally:
            self._takers.remove(take)

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame, without waiting for an answer; return when there is room for the next."""
        if self.lost is not None:
            raise self.lost
        self._command.put(frames.pack(header, payload))
        await self._command.drain()
        if self.lost is not None:
            raise self.lost

    async def close(self, grace: float = 2.0) -> None:
        """Let the agent stop its workers and end, in bounded time; a second call does nothing."""
        if self._closing:
            return
        self._closing = True
        left = False
        try:
            if self.lost is None:
                with contextlib.suppress(MachineError):
                    await self.ask("leave", grace=grace, timeout=LEAVE_SECONDS + grace)
                    left = await self._has_ended()
        finally:  # even if closing itself is cancelled
            await self._end(kill=not left and not self._ended)

    async def detach(self) -> None:
        """Disconnect; the agent and its workers go on."""
        self._closing = True
        await self._end(kill=False)

    async def __aenter__(self) -> AgentLink:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, hello: dict[str, Any], timeout: float) -> None:
        """Send the agent's source code, then the request ``hello``."""
        await self._command.__aenter__()
        self._tasks = [asyncio.create_task(self._listen())]
        try:
            async with asyncio.timeout(timeout):
                await self._command.write(agent_sources())
            self.hello, _ = await self.request({"ask": "hello", **hello}, timeout=timeout)
        except TimeoutError:
            raise loss.silent(self.machine, timeout) from None
        self._tasks.append(asyncio.create_task(self._ping()))

    async def abandon(self) -> None:
        """Kill an agent whose ``open`` failed."""
        self._closing = True
        await self._end(kill=True)

    async def _listen(self) -> None:
        try:
            while self.lost is None:
                self._take(*await frames.unpack(self._read))
        except EOFError:
            self._ended = True
            self._lose(await loss.why_it_ended(self._command))
        except frames.WrongAgentFrame as error:
            self._lose(loss.talks_otherwise(self.machine, str(error)))
        except OSError as error:  # of this machine's disk, not of the connection
            why = error.strerror or str(error)
            self._lose(
                MachineError(
                    f"cannot write here what {self.machine.name} sends: {why}",
                    "Free some space on this machine, or set PHALANX_RUNS to a folder with free "
                    "space.",
                )
            )
        except Exception as error:  # the listener did not expect what was sent
            why = f"{type(error).__name__}: {error}"
            self._lose(loss.talks_otherwise(self.machine, why))
            raise

    async def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = await self._command.read(count)
            if not part:
                raise EOFError
            self._heard = time.monotonic()
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        found = frames.read_as(frames.AgentFrame, header)
        if found.tell == "pong":
            self._clock.take(frames.read_as(frames.Pong, header))
        elif found.tell is not None:
            self.waiting.heard(found.tell)
            if not any(take(found.tell, header, payload) for take in self._takers):
                self._listener.on_tell(found.tell, header, payload)
        elif found.problem is not None:
            told = frames.read_as(frames.AgentProblem, header)
            cause = f"{self.machine.name}: {loss.without_controls(told.cause)}"
            refused = frames.AgentRefused(cause, loss.without_controls(told.remedy))
            frames.fail(self._waiting.get(found.problem), refused)
        elif found.answer is not None:
            waiting = self._waiting.get(found.answer)
            if waiting is not None and not waiting.done():  # otherwise it comes too late
                waiting.set_result((header, payload))
        else:
            raise frames.WrongAgentFrame("a frame has no message")

    async def _ping(self) -> None:
        for count in itertools.count(1):
            self._command.put(frames.pack({"ask": "ping", "sent": time.monotonic()}))
            pause = PING_SECONDS if count > FIRST_PINGS else PING_SECONDS / 20
            # The monotonic clock stands still while the computer sleeps; CLOCK_BOOTTIME does not.
            before = time.clock_gettime(time.CLOCK_BOOTTIME)
            await asyncio.sleep(pause)
            gap = time.clock_gettime(time.CLOCK_BOOTTIME) - before - pause
            if gap > OWN_GAP:
                self._heard = time.monotonic()  # the agent had no chance to be heard
                self._listener.on_gap(gap)
            if self.lost is not None:
                return
            if time.monotonic() - self._heard > self._patience:
                self._lose(loss.silent(self.machine, self._patience))
                return

    def _lose(self, error: MachineError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        for waiting in self._waiting.values():
            frames.fail(waiting, error)
        if not self._closing:
            self._listener.on_lost(error)

    async def _has_ended(self) -> bool:
        with contextlib.suppress(TimeoutError):
            await self._command.wait(END_SECONDS)
            return True
        return False

    async def _end(self, *, kill: bool) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not kill:
            self._command.let_go()
        await self._command.__aexit__()


async def open_agent(
    machine: Machine,
    *,
    run: str | None,
    detach: bool = False,
    attach: bool = False,
    hold: float = 0.0,
    timeout: float = CONNECT_SECONDS,
    patience: float = PATIENCE,
    listener: frames.AgentListener | None = None,
) -> AgentLink:
    """Log in, and start an agent in the machine's Python; return the link to it.

    ``detach``: the agent outlives this link. ``attach``: connect to the agent of ``run`` that still
    runs. ``hold``: the seconds for which the agent waits if this controller falls silent.
    """
    words = agent_command(machine.interpreter, run)
    command = await start_command(machine, words, timeout=timeout)
    link = AgentLink(command, patience, listener or frames.AgentListener())
    hello = {
        "run": run,
        "name": machine.name,
        "folder": machine.folder,
        "patience": patience,
        "detach": detach,
        "attach": attach,
        "hold": hold,
    }
    try:
        await link.open(hello, HELLO_SECONDS)
    except BaseException:
        await link.abandon()
        raise
    return link


BOOT = "boot"
LABEL = "phalanx-agent"
"""The first word of the agent's code, before the run's name: process tables show both."""


@functools.cache
def agent_sources() -> bytes:
    """Return ``{module: source}`` as JSON: all of the agent but its boot."""
    sources = {"phalanx": "", **_sources_in(resources.files("phalanx.agent"), "phalanx.agent")}
    return msgspec.json.encode(sources)


def _sources_in(folder: Traversable, package: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in folder.iterdir():
        name, _, suffix = entry.name.rpartition(".")
        if entry.is_dir() and entry.name != "__pycache__":
            found |= _sources_in(entry, f"{package}.{entry.name}")
        elif suffix == "py" and name != BOOT:
            module = package if name == "__init__" else f"{package}.{name}"
            found[module] = entry.read_text(encoding="utf-8")
    return found


@functools.cache
def boot_source() -> str:
    return (resources.files("phalanx.agent") / f"{BOOT}.py").read_text(encoding="utf-8")


def agent_command(python: str, run: str | None) -> list[str]:
    """Return the command that starts an agent, which reads its sources from standard input.

    With -I nothing of the user's folder or ``PYTHONPATH`` is imported. With -X utf8 names of files
    and words of commands are UTF-8 whatever the machine's locale is.
    """
    label = " ".join(f"# {LABEL} {run or ''}".split())
    options = ["-X", "utf8", "-I"]
    return [python, *options, "-c", f"{label}\n{boot_source()}", str(len(agent_sources()))]
