"""Whole runs by the real command line, and a file of those that are done."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import NOTHING, ROOT, phalanx_command

_GRACE = 20.0
_RUNNING: set[subprocess.Popen[str]] = set()
PLAIN = ("--checkpoint-every", "0")
EQUAL = ":shares=equal"
"""Behind a strategy: only the strategy differs, not the shares of a batch."""


class Failed(Exception):  # noqa: N818  (what became of a run)
    """A run that came to nothing, and why."""


class Results:
    """One JSON line per finished run; what is in it is not run again."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        if file.exists():
            self.rows = [row for line in file.read_text().splitlines() if (row := _row(line))]

    def find(self, key: Mapping[str, object]) -> dict[str, Any] | None:
        matching = (row for row in self.rows if key.items() <= row.items())
        return next(matching, None)

    def add(self, row: dict[str, Any]) -> None:
        line = json.dumps(row)
        with self._lock, self._file.open("a") as file:
            file.write(line + "\n")
            self.rows.append(row)
            print(line, flush=True)


def _row(line: str) -> dict[str, Any] | None:
    """A line that was cut short when its writer was ended counts as not there."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def run_phalanx(
    words: Sequence[str], folder: Path, limit: float, variables: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    """``phalanx WORDS --json`` with its runs in ``folder``; its JSON. No GPU takes part."""
    folder.mkdir(parents=True, exist_ok=True)
    at = list(words).index("--") if "--" in words else len(words)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        phalanx_command(*words[:at], "--json", *words[at:]),
        env={
            **os.environ,
            "PYTHONPATH": path,
            "PHALANX_RUNS": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
            **variables,
        },
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = _communicate(process, limit)
    lines = output.splitlines()
    if process.returncode or not lines:
        raise Failed(f"exit code {process.returncode}: {errors[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _communicate(process: subprocess.Popen[str], limit: float) -> tuple[str, str]:
    _RUNNING.add(process)
    try:
        return process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"it took more than {limit:g} s") from None
    finally:
        _end(process)
        _RUNNING.discard(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_GRACE)


@atexit.register
def _end_all() -> None:
    """Runs that other threads wait for: those threads end with the program."""
    for process in list(_RUNNING):
        process.terminate()
    for process in list(_RUNNING):
        _end(process)


def forget(folder: Path) -> None:
    """The files of a run whose figures are noted."""
    shutil.rmtree(folder, ignore_errors=True)
