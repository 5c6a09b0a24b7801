"""Runs one command on a machine of a pool: over SSH, or here as a subprocess, with one interface.

Commands are argument lists; secrets go over standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import asyncssh

from phalanx.core.errors import InputError, MachineError
from phalanx.launch.ssh.ssh_connect import CONNECT_SECONDS, connect, ends_of, words_of
from phalanx.pool.machine import Machine

LINE_LIMIT = 1 << 20
ERRORS_KEPT = 8 << 10
KILL_SECONDS = 2.0
TELL_GROUP = 'read -r _ _ _ _ group _ < /proc/$$/stat && echo "$group" && exec "$@"'
"""Run by the machine's sh before the command: OpenSSH delivers no signals to root's sessions, so
that a command is ended through its process group, which it tells in its first line."""


class RunningCommand(ABC):
    """A running command; leaving ``async with`` ends it."""

    def __init__(self, machine: Machine, process: Any) -> None:
        """Take ``process``, of asyncio or of asyncssh, whose streams are alike."""
        self.machine = machine
        self.address: str | None = None
        """The machine's address as it was reached; ``None`` for this machine."""
        self.reached_from: str | None = None
        """This machine's own address on the way there."""
        self._process = process
        self._errors = bytearray()
        self._reading: asyncio.Task[None] | None = None
        self._kept = True

    @property
    def errors(self) -> str:
        """The last of what the command wrote to its standard error."""
        return self._errors.decode(errors="replace").strip()

    async def write(self, data: bytes) -> None:
        """Give the command ``data`` as standard input."""
        self.put(data)
        await self.drain()

    def put(self, data: bytes) -> None:
        """Do the same as ``write``, without waiting for room (see ``drain``)."""
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write(data)

    async def drain(self) -> None:
        """Wait until there is room for more input."""
        with contextlib.suppress(OSError, asyncssh.Error):
            await self._process.stdin.drain()

    async def read(self, count: int) -> bytes:
        """Read at most ``count`` bytes of its standard output; none at its end."""
        with contextlib.suppress(OSError, asyncssh.Error):
            return bytes(await self._process.stdout.read(count))
        return b""

    def let_go(self) -> None:
        """Let leaving ``async with`` end the connection only, not the command."""
        self._kept = False

    async def line(self, timeout: float) -> bytes | None:
        """Return the next line of its output; ``None`` at its end. ``TimeoutError`` if late."""
        async with asyncio.timeout(timeout):
            try:
                return bytes(await self._process.stdout.readline()).rstrip(b"\n") or None
            except (ValueError, OSError, asyncssh.Error, asyncio.IncompleteReadError):
                return None

    async def __aenter__(self) -> RunningCommand:
        self._reading = asyncio.create_task(self._keep_errors())
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
            async with asyncio.timeout(KILL_SECONDS):
                await self._end(kill=self._kept)
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    @abstractmethod
    async def wait(self, timeout: float) -> int | None:
        """Wait for its exit code; ``None`` if it has none (a signal, a lost connection)."""

    @abstractmethod
    async def _end(self, *, kill: bool) -> None:
        """End the connection it came over; the command itself only with ``kill``."""

    async def _keep_errors(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while part := await self._process.stderr.read(4096):
                self._errors += part
                del self._errors[:-ERRORS_KEPT]


class LocalCommand(RunningCommand):
    """A subprocess on this machine, in a group of its own."""

    async def wait(self, timeout: float) -> int | None:
        async with asyncio.timeout(timeout):
            code = int(await self._process.wait())
        return code if code >= 0 else None

    async def _end(self, *, kill: bool) -> None:
        self._process.stdin.close()
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        # Close pipes too, which what the command started may hold open; there is no public way.
        self._process._transport.close()


class SshCommand(RunningCommand):
    """A process on another machine, with the connection it came over."""

    def __init__(
        self,
        machine: Machine,
        connection: asyncssh.SSHClientConnection,
        process: asyncssh.SSHClientProcess[bytes],
        group: int,
    ) -> None:
        super().__init__(machine, process)
        self._connection, self._group = connection, group
        self.address, self.reached_from = ends_of(machine, connection)

    async def wait(self, timeout: float) -> int | None:
        async with asyncio.timeout(timeout):
            await self._process.wait_closed()
        return self._process.returncode if self._process.exit_signal is None else None

    async def _end(self, *, kill: bool) -> None:
        try:
            if kill:
                words = ["kill", "-KILL", "--", f"-{self._group}"]
                await self._connection.run(shlex.join(words), timeout=KILL_SECONDS)
        finally:
            self._connection.abort()


async def start_command(
    machine: Machine, words: Sequence[str], *, timeout: float = CONNECT_SECONDS
) -> RunningCommand:
    """Start ``words`` on ``machine``; whatever keeps it from starting is one ``PhalanxError``."""
    if machine.is_here:
        return await _start_here(machine, words)
    connection = await connect(machine, timeout=timeout)
    try:
        async with asyncio.timeout(timeout):
            command = shlex.join(["sh", "-c", TELL_GROUP, "sh", *words])
            process = await connection.create_process(command, encoding=None)
            first = await process.stdout.readline()
        return SshCommand(machine, connection, process, _group_in(first))
    except (OSError, ValueError, asyncssh.Error) as error:
        connection.abort()
        raise MachineError(
            f"{machine.label} cannot start a command: {words_of(error)}",
            "Check that its SSH server allows commands, and that its login shell prints nothing.",
        ) from None
    except BaseException:
        connection.abort()
        raise


def _group_in(line: bytes) -> int:
    """Return the group in the first line; anything else there is the login shell's."""
    if line.strip().isdigit():
        return int(line)
    said = "".join(c for c in line.decode(errors="replace") if c.isprintable())
    raise ValueError(f"it printed '{said[:150]}'" if said else "it printed nothing")


async def _start_here(machine: Machine, words: Sequence[str]) -> LocalCommand:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE_LIMIT, start_new_session=True
        )
    except OSError as error:
        raise InputError(
            f"{machine.name}: cannot start {words[0]}: {words_of(error)}",
            "Check 'python' of that machine in the blueprint.",
        ) from None
    return LocalCommand(machine, process)
