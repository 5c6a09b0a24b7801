"""Reads known host keys with their file and line, and records new ones, in OpenSSH's format."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from phalanx.core.errors import InputError
from phalanx.core.files import write_asked
from phalanx.pool.machine import Machine

SIZE_LIMIT = 4 << 20


@dataclass(frozen=True)
class KnownKey:
    """One key that a machine may show, and where it is written."""

    kind: str
    fingerprint: str
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def known_keys(machine: Machine) -> list[KnownKey]:
    """Return the known keys of ``machine``: from the pool's file, else from the user's."""
    files = [Path(machine.known_keys)] if machine.known_keys else []
    for file in (*files, Path("~/.ssh/known_hosts").expanduser()):
        if found := keys_in(file, machine):
            return found
    return []


def keys_in(file: Path, machine: Machine) -> list[KnownKey]:
    """Return the keys of ``machine`` in one file."""
    return [
        KnownKey(key.get_algorithm(), key.get_fingerprint("sha256"), file, number)
        for number, line in enumerate(_lines(file), start=1)
        for key in _keys_of(line, machine)
    ]


def as_known_hosts(machine: Machine) -> Any:
    """Return the known hosts for asyncssh; ``None``: asyncssh is to use the user's own file."""
    if not machine.known_keys:
        return None
    file = Path(machine.known_keys)
    if not keys_in(file, machine):
        return None
    try:
        return asyncssh.import_known_hosts("\n".join(_lines(file)))
    except ValueError as error:
        raise InputError(f"{file}: {error}", "Correct or remove that line.") from None


def record(file: Path, found: Iterable[tuple[Machine, asyncssh.SSHKey]]) -> None:
    """Add keys at the end of the pool's file, each with its machine's name as a comment."""
    lines = _lines(file)
    for machine, key in found:
        public = key.export_public_key("openssh").decode().split()
        host = machine.host.strip("[]")
        place = host if machine.port == 22 else f"[{host}]:{machine.port}"
        lines.append(f"{place} {public[0]} {public[1]} {machine.name}")
    remedy = "Make that folder writable: host keys are kept beside the blueprint."
    write_asked(file, "\n".join(lines) + "\n", remedy, 0o644)


def _keys_of(line: str, machine: Machine) -> list[asyncssh.SSHKey]:
    if not line.strip() or line.lstrip().startswith(("#", "@")):
        return []
    try:
        known = asyncssh.import_known_hosts(line)
    except ValueError:
        return []
    port = None if machine.port == 22 else machine.port
    return list(known.match(machine.host.strip("[]"), "", port)[0])


def _lines(file: Path) -> list[str]:
    try:
        with file.open("rb") as opened:
            data = opened.read(SIZE_LIMIT)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read: {os.strerror(error.errno or 0).lower()}",
            "Make it readable: it holds the known host keys.",
        ) from None
    return data.decode(errors="replace").splitlines()
