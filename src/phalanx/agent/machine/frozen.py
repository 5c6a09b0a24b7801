"""Finds workers that do not run at all, and where their training was when they last did.

Each worker shows once a second where its training is, in anonymous memory that the processes of
its user can read. A stopped process can show nothing, but what it showed last is still there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.agent.system import stat_fields

NAME = "phalanx-stack"
STALE = 5.0
"""Seconds after which what a worker shows is old: its threads do not run."""
MOST_FRAMES = 14
MOST_LETTERS = 150
"""The most letters of a frame: a sample with the frames of some workers has to stay one line."""
_SPY_SECONDS = 5.0


class FrozenWorkers:
    """Looks at the workers' processes, once for each reading of the machine."""

    def __init__(self) -> None:
        self._shown: dict[int, str] = {}
        """By process, the path of the memory in which it shows where its training is."""
        self._seen: dict[int, list[str]] = {}
        """The frames of processes that were frozen at the last look, too."""

    def among(self, pids: Iterable[int]) -> list[dict[str, Any]] | None:
        """Return the frozen workers; ``None`` if all run."""
        found = {}
        for pid in pids:
            state = "".join(stat_fields(pid)[:1])
            shown = self._read(pid)
            if shown is not None and (
                state in ("T", "t") or time.monotonic() - shown["time"] > STALE
            ):
                frames = self._seen.get(pid) or _spied(pid) or shown["stack"]
                found[pid] = {"pid": pid, "state": state, "stack": frames}
        self._seen = {pid: each["stack"] for pid, each in found.items()}
        return list(found.values()) or None

    def _read(self, pid: int) -> dict[str, Any] | None:
        for path in (self._shown.get(pid), *_memories(pid)):
            try:
                shown = json.loads(Path(path).read_bytes()) if path else None
            except (OSError, ValueError):
                continue  # it trains another model by now, or writes at this very moment
            if isinstance(shown, dict):
                self._shown[pid] = str(path)
                return shown
        return None


def _memories(pid: int) -> Iterable[str]:
    """The paths of the memory in which a process shows its stack; none of one that shows none."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        return
    for path in (f"/proc/{pid}/fd/{name}" for name in names):
        try:
            if os.readlink(path).startswith(f"/memfd:{NAME}"):  # noqa: PTH115
                yield path
        except OSError:
            continue


def _spied(pid: int) -> list[str]:
    """The stack that py-spy reads from outside, where it is installed: it is of this moment."""
    spy = shutil.which("py-spy")
    if spy is None:
        return []
    words = [spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SPY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return spied_frames(ended.stdout.decode("utf-8", "replace"))


def spied_frames(text: str) -> list[str]:
    """The frames of the main thread in the words of ``py-spy dump``, as workers show theirs."""
    frames: list[str] = []
    for line in text.partition('"MainThread"')[2].splitlines()[1:]:
        name, opening, place = line.strip().rpartition(" (")
        if not line.startswith(" ") or not opening:
            break
        frames.append(f"{place[:-1]} {name}"[-MOST_LETTERS:])
    return frames[:MOST_FRAMES]
