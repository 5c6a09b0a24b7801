"""The agent as it is sent: a command for the machine's Python, and sources for its memory."""

from __future__ import annotations

import functools
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

BOOT = "boot"
LABEL = "phalanx-agent"
"""The command begins with it and the run, so that process tables show whose it is."""


@functools.cache
def agent_sources() -> bytes:
    """``{module: source}`` as JSON: all of the agent but its boot."""
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
    """What starts an agent that reads its sources from standard input.

    Isolated (-I): nothing of the user's folder or ``PYTHONPATH`` is imported. Names of files and
    words of commands are UTF-8 whatever the machine's locale is.
    """
    label = " ".join(f"# {LABEL} {run or ''}".split())
    options = ["-X", "utf8", "-I"]
    return [python, *options, "-c", f"{label}\n{boot_source()}", str(len(agent_sources()))]
