"""One command on a machine of a pool: over SSH, or here as a subprocess, with one interface.

The host key is always checked: against the blueprint's ``host_key`` or, where that is left out,
against the user's own ``known_hosts``. Commands are argument lists; secrets go over standard input.
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
from phalanx.launch.ssh_login import login_options, remember_host_key
from phalanx.pool.machine import Machine

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 3
LINE_LIMIT = 1 << 20
ERRORS_KEPT = 8 << 10
KILL_SECONDS = 2.0
TELL_GROUP = 'read -r _ _ _ _ group _ < /proc/$$/stat && echo "$group" && exec "$@"'
"""Run by the machine's sh before the command: OpenSSH delivers no signals to root's sessions, so
that a command is ended through its process group, which it tells in its first line."""
HOST_KEY_KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)


_OTHER_KEY = (
    asyncssh.HostKeyNotVerifiable,
    asyncssh.KeyExchangeFailed,
    ConnectionResetError,  # how some servers say that they have no key of this kind
    asyncssh.ConnectionLost,
)


class RunningCommand(ABC):
    """A command that is running; leaving ``async with`` ends it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.address: str | None = None
        """The machine's, as it was reached; ``None`` of this machine."""
        self.reached_from: str | None = None
        """This machine's own address on the way there."""
        self._errors = bytearray()
        self._reading: asyncio.Task[None] | None = None

    @property
    def errors(self) -> str:
        """The last of what the command wrote to its standard error."""
        return self._errors.decode(errors="replace").strip()

    async def write(self, data: bytes) -> None:
        """Give it ``data`` as standard input."""
        with contextlib.suppress(OSError, asyncssh.Error):
            await self._write(data)

    async def line(self, timeout: float) -> bytes | None:
        """The next line of its standard output; ``None`` at its end. ``TimeoutError`` if late."""
        async with asyncio.timeout(timeout):
            try:
                return (await self._read_line()).rstrip(b"\n") or None
            except (ValueError, OSError, asyncssh.Error, asyncio.IncompleteReadError):
                return None

    async def __aenter__(self) -> RunningCommand:
        self._reading = asyncio.create_task(self._keep_errors())
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
            async with asyncio.timeout(KILL_SECONDS):
                await self.kill()
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    @abstractmethod
    async def wait(self, timeout: float) -> int | None:
        """Its exit code; ``None`` when it has none (a signal, a lost connection)."""

    @abstractmethod
    async def kill(self) -> None:
        """End it, and the connection it came over."""

    @abstractmethod
    async def _write(self, data: bytes) -> None: ...

    @abstractmethod
    async def _read_line(self) -> bytes: ...

    @abstractmethod
    async def _read_errors(self) -> bytes: ...

    async def _keep_errors(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while part := await self._read_errors():
                self._errors += part
                del self._errors[:-ERRORS_KEPT]


class LocalCommand(RunningCommand):
    """A subprocess of this machine, in a group of its own."""

    def __init__(self, machine: Machine, process: asyncio.subprocess.Process) -> None:
        super().__init__(machine)
        assert process.stdin and process.stdout and process.stderr
        self._process, self._input = process, process.stdin
        self._output, self._error_output = process.stdout, process.stderr

    async def wait(self, timeout: float) -> int | None:
        async with asyncio.timeout(timeout):
            code = await self._process.wait()
        return code if code >= 0 else None

    async def kill(self) -> None:
        self._input.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def _write(self, data: bytes) -> None:
        self._input.write(data)
        await self._input.drain()

    async def _read_line(self) -> bytes:
        return await self._output.readline()

    async def _read_errors(self) -> bytes:
        return await self._error_output.read(4096)


class SshCommand(RunningCommand):
    """A process on another machine, with the connection it came over."""

    def __init__(
        self,
        machine: Machine,
        connection: asyncssh.SSHClientConnection,
        process: asyncssh.SSHClientProcess[bytes],
        group: int,
    ) -> None:
        super().__init__(machine)
        self._connection, self._process, self._group = connection, process, group
        self.address = str(connection.get_extra_info("peername")[0])
        self.reached_from = str(connection.get_extra_info("sockname")[0])

    async def wait(self, timeout: float) -> int | None:
        async with asyncio.timeout(timeout):
            await self._process.wait_closed()
        return self._process.returncode if self._process.exit_signal is None else None

    async def kill(self) -> None:
        try:
            words = ["kill", "-KILL", "--", f"-{self._group}"]
            await self._connection.run(shlex.join(words), timeout=KILL_SECONDS)
        finally:
            self._connection.abort()

    async def _write(self, data: bytes) -> None:
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def _read_line(self) -> bytes:
        return await self._process.stdout.readline()

    async def _read_errors(self) -> bytes:
        return await self._process.stderr.read(4096)


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
            return SshCommand(machine, connection, process, int(await process.stdout.readline()))
    except (OSError, ValueError, asyncssh.Error) as error:
        connection.abort()
        raise MachineError(
            f"{machine.name} ({machine.address}) starts no command: {_words(error)}",
            "Its SSH server has to allow commands, and its login shell has to print nothing.",
        ) from None
    except BaseException:
        connection.abort()
        raise


async def connect(
    machine: Machine, *, timeout: float = CONNECT_SECONDS
) -> asyncssh.SSHClientConnection:
    """Log in to ``machine``, whose host key has to be the one that is known."""
    presented: list[str] = []
    why: Exception | None = None
    options = login_options(machine)
    for kind in HOST_KEY_KINDS if machine.host_key else (None,):
        if kind is not None:
            options["server_host_key_algs"] = kind
        try:
            async with asyncio.timeout(timeout):
                return await _log_in(machine, options, presented)
        except TimeoutError:
            raise MachineError(
                f"{machine.name} ({machine.address}) does not answer",
                "Is it up, and is this its address?",
            ) from None
        except _OTHER_KEY as error:
            why = error  # a server has several keys, and the blueprint one of them
    raise _unknown_host_key(machine, presented) if presented else _unreachable(machine, why)


async def _log_in(
    machine: Machine, options: dict[str, Any], presented: list[str]
) -> asyncssh.SSHClientConnection:
    where = f"{machine.name} ({machine.address})"
    try:
        return await asyncssh.connect(
            machine.host.strip("[]"),
            machine.port,
            client_factory=remember_host_key(machine.host_key, presented),
            keepalive_interval=KEEPALIVE_SECONDS,
            **options,
        )
    except (TimeoutError, *_OTHER_KEY):
        raise
    except asyncssh.PermissionDenied:
        raise MachineError(
            f"{where} does not let {machine.user or 'this user'} in",
            "Check user, key and password in the blueprint.",
        ) from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        raise InputError(
            f"the key of {machine.name} cannot be used without its passphrase",
            "Add it to the agent (ssh-add), and leave 'key' out of the blueprint.",
        ) from None
    except (OSError, asyncssh.Error) as error:
        raise _unreachable(machine, error) from None


def _unreachable(machine: Machine, error: Exception | None) -> MachineError:
    return MachineError(
        f"{machine.name} ({machine.address}) cannot be reached: {_words(error)}",
        "Is it up, is this its address, and does its SSH server run?",
    )


def _unknown_host_key(machine: Machine, presented: Sequence[str]) -> MachineError:
    shown = ", ".join(presented) or "one that cannot be read"
    if machine.host_key:
        return MachineError(
            f"{machine.name} ({machine.address}) shows the host key {shown}, "
            f"the blueprint has {machine.host_key}",
            "Somebody may be in between. If the machine was set up anew, correct host_key.",
        )
    return MachineError(
        f"the host key of {machine.name} ({machine.address}) is not known: {shown}",
        "If that is what 'ssh-keygen -lf' prints on the machine itself, put it into the "
        "blueprint as host_key.",
    )


async def _start_here(machine: Machine, words: Sequence[str]) -> LocalCommand:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE_LIMIT, start_new_session=True
        )
    except OSError as error:
        raise InputError(
            f"{machine.name}: cannot start {words[0]}: {_words(error)}",
            "Check 'python' of that machine in the blueprint.",
        ) from None
    return LocalCommand(machine, process)


def _words(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
