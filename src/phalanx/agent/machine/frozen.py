"""Finds workers that do not run at all, and where their training was when they last did.

Each worker shows once a second where its training is, in anonymous memory that the processes of
its user can read. A stopped process can show nothing, but what it showed last is still there.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.agent.system import stat_fields

NAME = "phalanx-stack"
"""As in ``observe.events.emit``, which shows it."""
STALE = 5.0
"""Seconds after which what a worker shows is old: its threads do not run."""
_MOST_FRAMES, _MOST_LETTERS = 14, 150
_SPY_SECONDS = 5.0


class FrozenWorkers:
    """Looks at the workers' processes, once for each reading of the machine."""

    def __init__(self) -> None:
        self._seen: dict[int, list[str]] = {}
        """The frames of processes that were frozen at the last look, too."""

    def among(self, pids: Iterable[int]) -> list[dict[str, Any]] | None:
        """Return the frozen workers; ``None`` if all run."""
        found: list[dict[str, Any]] = []
        for pid in pids:
            state, shown = "".join(stat_fields(pid)[:1]), _shown(pid)
            if shown and (state in ("T", "t") or time.monotonic() - shown["time"] > STALE):
                frames = self._seen.get(pid) or _spied(pid) or shown["stack"]
                found.append({"pid": pid, "state": state, "stack": frames})
        self._seen = {each["pid"]: each["stack"] for each in found}
        return found or None


def _shown(pid: int) -> dict[str, Any] | None:
    """What a process shows of its training; ``None`` if it shows nothing, or writes just now."""
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(str(entry)).startswith(f"/memfd:{NAME}"):  # noqa: PTH115
                return dict(json.loads(entry.read_bytes()))
    except (OSError, ValueError):
        return None
    return None


def _spied(pid: int) -> list[str]:
    """The stack that py-spy reads from outside, where it is installed: it is of this moment."""
    words = ["py-spy", "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        told = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SPY_SECONDS, check=True
        )
        threads = {thread["thread_name"]: thread["frames"] for thread in json.loads(told.stdout)}
        frames = threads["MainThread"][:_MOST_FRAMES]
        return [f"{f['filename']}:{f['line']} {f['name']}"[-_MOST_LETTERS:] for f in frames]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return []
