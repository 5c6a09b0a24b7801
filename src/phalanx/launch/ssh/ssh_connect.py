"""Logging in to a machine of a pool.

The host key is always checked: against the blueprint's ``host_key``, else the pool's own file of
keys, else the user's ``known_hosts``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import asyncssh

from phalanx.core.errors import InputError, MachineError
from phalanx.launch.ssh.known_keys import known_keys
from phalanx.launch.ssh.ssh_login import LoginWatch, login_options
from phalanx.pool.machine import Machine

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 3
HOST_KEY_KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)


OTHER_KEY = (
    asyncssh.HostKeyNotVerifiable,
    asyncssh.KeyExchangeFailed,
    ConnectionResetError,  # by which some servers refuse a kind of key that they lack
    asyncssh.ConnectionLost,
)


async def connect(
    machine: Machine, *, timeout: float = CONNECT_SECONDS
) -> asyncssh.SSHClientConnection:
    """Log in to ``machine``, whose host key has to be the one that is known.

    Jump hosts are logged in to first, and left when this connection ends.
    """
    tunnel = None if machine.via is None else await connect(machine.via, timeout=timeout)
    try:
        return await _connect_over(machine, tunnel, timeout)
    except BaseException:
        if tunnel is not None:
            tunnel.abort()
        raise


async def _connect_over(
    machine: Machine, tunnel: asyncssh.SSHClientConnection | None, timeout: float
) -> asyncssh.SSHClientConnection:
    watch = LoginWatch(machine.host_key)
    why: Exception | None = None
    options = login_options(machine)
    if tunnel is not None:
        options["tunnel"] = tunnel
    for kind in HOST_KEY_KINDS if machine.host_key else (None,):
        if kind is not None:
            options["server_host_key_algs"] = kind
        try:
            async with asyncio.timeout(timeout):
                connection = await _log_in(machine, options, watch)
        except TimeoutError:
            raise MachineError(
                f"{machine.label} does not answer{_way(machine)}",
                "Check that it is up, and that this is its address.",
            ) from None
        except OTHER_KEY as error:
            why = error  # a server has several keys, and the blueprint has one of them
        else:
            watch.tunnel = tunnel
            return connection
    raise _wrong_host_key(machine, watch.presented, why)


async def _log_in(
    machine: Machine, options: dict[str, Any], watch: LoginWatch
) -> asyncssh.SSHClientConnection:
    where = machine.label
    try:
        return await asyncssh.connect(
            machine.host.strip("[]"),
            machine.port,
            client_factory=lambda: watch,
            keepalive_interval=KEEPALIVE_SECONDS,
            **options,
        )
    except (TimeoutError, *OTHER_KEY):
        raise
    except asyncssh.PermissionDenied:
        raise MachineError(
            f"{where} rejected the login of {machine.user or 'this user'}",
            "Check user, key and password in the blueprint.",
        ) from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        raise InputError(
            f"the key of {machine.name} cannot be used without its passphrase",
            "Add it to the SSH agent (ssh-add), and remove 'key' from the blueprint.",
        ) from None
    except (OSError, asyncssh.Error) as error:
        raise unreachable(machine, error) from None


def ends_of(machine: Machine, connection: asyncssh.SSHClientConnection) -> tuple[str, str | None]:
    """Return the machine's address and this machine's own address, as the connection has them.

    Through a jump host neither can be seen: the first is the blueprint's, the second ``None``.
    """
    if machine.via is not None:
        return machine.host.strip("[]"), None
    peer, own = (connection.get_extra_info(name) for name in ("peername", "sockname"))
    return str(peer[0]), str(own[0])


def unreachable(machine: Machine, error: Exception | None) -> MachineError:
    return MachineError(
        f"{machine.label} cannot be reached{_way(machine)}: {words_of(error)}",
        "Check that it is up, that this is its address, and that its SSH server runs.",
    )


def _way(machine: Machine) -> str:
    return "" if machine.via is None else f" through {machine.via.label}"


def _wrong_host_key(
    machine: Machine, presented: Sequence[str], why: Exception | None
) -> MachineError:
    known = [] if machine.host_key else known_keys(machine)
    refused = isinstance(why, asyncssh.KeyExchangeFailed) and bool(known)
    if not presented and not refused:
        return unreachable(machine, why)
    where = machine.label
    shown = ", ".join(presented) or f"not of type {known[0].kind}" if known else presented[0]
    if machine.host_key:
        return MachineError(
            f"{where} shows the host key {', '.join(presented)}, "
            f"the blueprint has {machine.host_key}",
            "This may be an attack. If the machine was reinstalled, correct host_key.",
        )
    if known:
        return MachineError(
            f"{where} shows a changed host key: {shown}; "
            f"{known[0].place} has {known[0].fingerprint}",
            "This may be an attack. If the machine was reinstalled, remove that line, "
            "then run: phalanx pool trust FILE",
        )
    return MachineError(
        f"the host key of {where} is not known: {shown}",
        "If that is what 'ssh-keygen -lf' prints on the machine itself, record it (phalanx pool "
        "trust FILE), or put it into the blueprint as host_key.",
    )


def words_of(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
