"""What it takes to log in to a machine of a pool, from its blueprint alone."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterable
from getpass import getpass
from pathlib import Path
from typing import Any

import asyncssh
from pydantic import SecretStr

from phalanx.core.errors import InputError
from phalanx.pool.credential import Credential
from phalanx.pool.machine import Machine

NOBODY: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
"""Known hosts: none. What is left is the fingerprint in the blueprint."""


def login_options(machine: Machine) -> dict[str, Any]:
    """User, keys and password; the user's ``~/.ssh/config`` is not read."""
    options: dict[str, Any] = {"config": None}
    if machine.host_key:
        options["known_hosts"] = NOBODY
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
    """The machines, once the user has typed the passwords of those that ask for one."""
    found = []
    for machine in machines:
        credential = machine.password
        if credential is not None and credential.kind == "prompt" and not machine.is_here:
            typed = getpass(f"password of {machine.name} ({machine.address}): ")
            secret = Credential("inline", secret=SecretStr(typed))
            machine = machine.model_copy(update={"password": secret})
        found.append(machine)
    return found


def remember_host_key(
    expected: str | None, presented: list[str]
) -> Callable[[], asyncssh.SSHClient]:
    """A client that accepts the key with this fingerprint only, and notes what was shown."""

    class Client(asyncssh.SSHClient):
        def validate_host_public_key(
            self, host: str, addr: str, port: int, key: asyncssh.SSHKey
        ) -> bool:
            shown = key.get_fingerprint("sha256")
            presented.append(shown)
            if expected is None:
                return False
            return hmac.compare_digest(shown.rstrip("="), expected.rstrip("="))

    return Client


def _only_key(machine: Machine, path: str) -> dict[str, Any]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(
            f"the key of {machine.name} is not there: {path}", "Correct 'key' in the blueprint."
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
                f"Set it: export {credential.name}=…",
            )
        return value
    if credential.secret is None:
        raise InputError(
            f"the password of {machine.name} was not asked for", "Use a key, or env:NAME."
        )
    return credential.secret.get_secret_value()
