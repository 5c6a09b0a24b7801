"""The record of a run that a cluster's launcher started: what its controller would have written.

Process 0 keeps it. Of the others it knows what lies in the same folder: everything on a file
system that the machines share, else what its own machine's workers wrote.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import IO, Any

from phalanx.core.errors import DONE, MACHINE_FAILED, STOPPED, InputError, RunStopped
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.run_folder.trust import write_launch
from phalanx.launch.launcher import Job, describe_launch
from phalanx.launch.run.open_run_folder import keep_source
from phalanx.launch.worker.script_runner import PEER_LOST_CODE, STOPPED_CODE
from phalanx.observe.events.timeline import read_ranks
from phalanx.observe.summary import run_lock as claim
from phalanx.observe.summary.summary import Summary, summarise

_PATIENCE = 5.0
"""Seconds that the others have for their last words after process 0 is done."""
_TICK = 0.1


class Record:
    """The files of one run besides its events, from its start to its end."""

    def __init__(self, job: Job, paths: RunPaths) -> None:
        self.code: int | None = None
        """How the script of this process ended; ``None`` until it has."""
        self._job, self._paths = job, paths
        self._claim = ExitStack()
        self._ended = threading.Lock()

    def begin(self) -> None:
        if self._paths.launch.exists():
            raise InputError(
                f"{self._paths.folder} already contains a run",
                "End it, or set another PHALANX_RUN_ID for this one.",
            )
        write_whole(self._paths.plan, self._job.plan.to_json() + "\n")
        launch = describe_launch(self._job, self._paths, [])
        write_launch(self._paths, launch.to_json() + "\n")
        keep_source(self._job.script, self._paths)
        self._claim.enter_context(claim.hold(self._paths))

    def end(self) -> Summary | None:
        """Write the summary, once; ``None`` the second time."""
        if not self._ended.acquire(blocking=False):
            return None
        status = status_of_code(self.code)
        if status == "done":
            self._await_others()
        codes = [self.code, *[None] * (self._job.plan.workers - 1)]
        summary = summarise(self._paths, status=status, exit_codes=codes)
        try:
            write_whole(self._paths.summary, summary.to_json() + "\n")
        finally:
            self._claim.close()
        return summary

    def _await_others(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if all(log.finished for log in read_ranks(self._paths) if log.joined):
                return
            time.sleep(_TICK)


def status_of_code(code: int | None) -> str:
    if code == 0:
        return "done"
    return "stopped" if code in (STOPPED_CODE, None) else "failed"


def exit_code_of(code: int) -> int:
    """The exit code of the command for that of its script."""
    known = {0: DONE, STOPPED_CODE: STOPPED, PEER_LOST_CODE: MACHINE_FAILED}
    return known.get(code, code if code in (2, MACHINE_FAILED) else 1)


def stop_in_order() -> None:
    """SIGTERM, by which launchers end a run, and Ctrl-C both stop it as ``phalanx stop`` does."""
    signal.signal(signal.SIGTERM, _stop)
    # Ctrl-C raises SIGTERM, because training replaces that handler by its own.
    signal.signal(signal.SIGINT, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _stop(number: int, frame: FrameType | None) -> None:
    raise RunStopped


class Tee:
    """What the script prints goes to the launcher's stream and to the log of its rank."""

    def __init__(self, stream: IO[str], log: IO[str]) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        try:
            self._log.write(text)
            self._log.flush()
        except (OSError, ValueError):
            pass  # a full disk: the launcher's stream still has it
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_output(log: Path) -> None:
    """Keeps a copy of what Python prints from now on in ``log``."""
    try:
        file = log.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError:
        return
    sys.stdout, sys.stderr = Tee(sys.stdout, file), Tee(sys.stderr, file)
