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
"""Shell code before the command: its first line of output is the command's process group, by which
the command is killed, because OpenSSH delivers no signals to root's sessions."""


class RunningCommand(ABC):
    """A running command; leaving ``async with`` ends it."""

    def __init__(self, machine: Machine, process: Any) -> None:
        """``process``: of asyncio or of asyncssh, whose streams have the same methods."""
        self.machine = machine
        self.address: str | None = None
        """The machine's address as it was reached; ``None`` for this machine."""
        self.reached_from: str | None = None
        """This machine's own address in the connection."""
        self._process = process
        self._errors = bytearray()
        self._reading: asyncio.Task[None] | None = None
        self._kept = True

    @property
    def errors(self) -> str:
        """The last of what the command wrote to its standard error."""
        return self._errors.decode(errors="replace").strip()

    async def write(self, data: bytes) -> None:
        """Write ``data`` to the command's standard input; wait until there is room for more."""
        self.put(data)
        await self.drain()

    def put(self, data: bytes) -> None:
        """Write ``data`` to the command's standard input, without waiting (see ``drain``)."""
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write(data)

    async def drain(self) -> None:
        """Wait until there is room for more input."""
        with contextlib.suppress(OSError, asyncssh.Error):
            await self._process.stdin.drain()

    async def read(self, count: int) -> bytes:
        """Read at most ``count`` bytes of the command's output; return none at its end."""
        with contextlib.suppress(OSError, asyncssh.Error):
            return bytes(await self._process.stdout.read(count))
        return b""

    def let_go(self) -> None:
        """Make the end of ``async with`` close only the connection, and not kill the command."""
        self._kept = False

    async def line(self, timeout: float) -> bytes | None:
        """Return the next line of output, ``None`` at the end; raise ``TimeoutError`` if late."""
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
        """Return the exit code at the end; ``None`` if there is none (signal, lost connection)."""

    @abstractmethod
    async def _end(self, *, kill: bool) -> None:
        """Close the connection; with ``kill``, end the command too."""

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
        # Close the pipes too, which children may hold open; asyncio has no public way for this.
        self._process._transport.close()


class SshCommand(RunningCommand):
    """A process on another machine, with the SSH connection to it."""

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
    """Start the command ``words`` on ``machine``; raise a ``PhalanxError`` if that fails."""
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
    """Read the group from the first line; raise if a login shell has printed other text."""
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
