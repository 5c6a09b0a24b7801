"""Reads the user's SSH configuration for a name, by ``ssh`` itself (``ssh -G``)."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import InputError

DEFAULT_KEYS = (
    "id_rsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_xmss",
    "id_dsa",
)


@dataclass(frozen=True)
class Resolved:
    """Host, user, port, key and jump host that ``ssh NAME`` would use."""

    host: str
    user: str | None = None
    port: int = 22
    key: str | None = None
    jump: str | None = None


def config_file() -> Path:
    return Path.home() / ".ssh" / "config"


def resolve(name: str) -> Resolved:
    """Resolve ``name``: an alias, a host, an address, or ``user@`` one of them."""
    user, at, host = name.rpartition("@")
    tool = shutil.which("ssh")
    if tool is None:
        return Resolved(host.strip("[]"), user if at else None)
    said = _ask(tool, name)
    jump = said.get("proxyjump", ["none"])[0]
    return Resolved(
        host=said.get("hostname", [host])[0],
        user=said.get("user", [None])[0],
        port=int(said.get("port", ["22"])[0]),
        key=_own_key(said.get("identityfile", [])),
        jump=None if jump == "none" else _resolve_jump(tool, jump),
    )


def _ask(tool: str, name: str) -> dict[str, list[str]]:
    words = [tool, "-G", *_which_file(), "--", name]
    try:
        answer = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=15, check=False
        )
    except (OSError, subprocess.SubprocessError):
        answer = None
    if answer is None or answer.returncode != 0:
        why = (answer.stderr.strip().splitlines() or ["no answer"])[-1] if answer else "no answer"
        raise InputError(
            f"ssh cannot resolve the name '{name}': {why[:200]}",
            "Give a host name, an address, or an alias of ~/.ssh/config.",
        )
    said: dict[str, list[str]] = {}
    for line in answer.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        said.setdefault(keyword.lower(), []).append(value.strip())
    return said


def _which_file() -> list[str]:
    """Return options that make ssh read the file in ``$HOME``, not that of the account's home."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    if config_file().parent.parent == home:
        return []
    return ["-F", str(config_file()) if config_file().is_file() else "none"]


def _own_key(files: list[str]) -> str | None:
    """Return the key that the configuration names; without one, ssh lists its own defaults."""
    for file in files:
        path = Path(file).expanduser()
        if path.name not in DEFAULT_KEYS and path.is_file():
            return file
    return None


def _resolve_jump(tool: str, jump: str) -> str:
    """Return the last hop as ``user@host:port``: aliases mean nothing outside the configuration."""
    last = jump.rpartition(",")[2].removeprefix("ssh://")
    name, colon, port = last.rpartition(":")
    name, port = (name, port) if colon and port.isdigit() else (last, "")
    said = _ask(tool, name)
    host = said.get("hostname", [name])[0]
    host = f"[{host}]" if ":" in host else host
    number = port or said.get("port", ["22"])[0]
    return f"{said.get('user', [''])[0]}@{host}" + ("" if number == "22" else f":{number}")
