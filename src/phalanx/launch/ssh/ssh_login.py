"""Makes the options to log in to a machine of a pool, from its blueprint alone."""

from __future__ import annotations

import functools
import hmac
import os
import signal
from collections.abc import Iterable
from getpass import getpass
from pathlib import Path
from typing import Any

import asyncssh
from pydantic import SecretStr

from phalanx.core.errors import InputError
from phalanx.launch.ssh.known_keys import as_known_hosts
from phalanx.pool.machine import Credential, Machine

NOBODY: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
"""No known hosts, so that only the fingerprint in the blueprint counts."""


def login_options(machine: Machine) -> dict[str, Any]:
    """Return user, keys and password; the user's ``~/.ssh/config`` is not read."""
    options: dict[str, Any] = {"config": None}
    if machine.host_key:
        options["known_hosts"] = NOBODY
    elif (known := as_known_hosts(machine)) is not None:
        options["known_hosts"] = known
    if machine.user:
        options["username"] = machine.user
    if machine.key:
        options |= _only_key(machine, machine.key)
    credential = machine.password
    if credential is None or credential.kind == "agent":
        return options
    if credential.kind == "key":
        return options | _only_key(machine, credential.name)
    return options | {"password": _password(machine)}


def with_passwords(machines: Iterable[Machine]) -> list[Machine]:
    """Return the machines, after the user has typed the passwords of those that ask for one."""
    return [_with_password(machine) for machine in machines]


def with_jump_passwords(machines: Iterable[Machine]) -> list[Machine]:
    """Ask for passwords of jump hosts only: there is no login to the machines behind them."""
    return [
        machine
        if machine.via is None
        else machine.model_copy(update={"via": _with_password(machine.via)})
        for machine in machines
    ]


def _with_password(machine: Machine) -> Machine:
    credential = machine.password
    update: dict[str, Any] = {}
    if machine.via is not None:
        update["via"] = _with_password(machine.via)
    if credential is not None and credential.kind == "prompt" and not machine.is_here:
        update["password"] = typed(machine.label)
    return machine.model_copy(update=update) if update else machine


@functools.cache
def typed(label: str) -> Credential:
    """Ask for a password, only once even if a command has several runs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:  # during a run Ctrl-C is only counted, and would not end this question
        text = getpass(f"password of {label}: ")
    except EOFError:
        raise InputError(
            f"there is no terminal in which to ask for the password of {label}",
            "Use a key, or env:NAME.",
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)
    return Credential("inline", secret=SecretStr(text))


class LoginWatch(asyncssh.SSHClient):
    """Accepts only the host key with the expected fingerprint; closes the tunnel through a jump
    host when the connection ends."""

    def __init__(self, expected: str | None) -> None:
        self._expected = expected
        self.presented: list[str] = []
        self.tunnel: asyncssh.SSHClientConnection | None = None

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        shown = key.get_fingerprint("sha256")
        self.presented.append(shown)
        if self._expected is None:
            return False
        return hmac.compare_digest(shown.rstrip("="), self._expected.rstrip("="))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.tunnel is not None:
            self.tunnel.abort()


def _only_key(machine: Machine, path: str) -> dict[str, Any]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(
            f"the key of {machine.name} does not exist: {path}", "Correct 'key' in the blueprint."
        )
    return {"client_keys": [str(file)], "agent_path": None}


def _password(machine: Machine) -> str:
    credential = machine.password
    assert credential is not None
    if credential.kind == "env":
        value = os.environ.get(credential.name)
        if value is None:
            raise InputError(
                f"the password of {machine.name} should be in {credential.name}, which is not set",
                f"Set it: read -rs {credential.name} && export {credential.name}",
            )
        return value
    if credential.secret is None:
        raise InputError(
            f"the password of {machine.name} cannot be asked for here", "Use a key, or env:NAME."
        )
    return credential.secret.get_secret_value()
