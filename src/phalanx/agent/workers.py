"""Starts, watches and ends the workers of this machine, each with all processes it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from phalanx.agent import system

STARTED = "PHALANX_STARTED"
CONTROLLER = "PHALANX_CONTROLLER"
AFTER_KILL = 2.0
_TICK = 0.02


class Workers:
    """The running workers, and the exit codes of those that have ended."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._orphans: set[int] = set()
        self._sweep_until = 0.0
        # A group may be signalled only while its leader has not been reaped: then it is still ours.
        self._lock = threading.Lock()

    @property
    def pids(self) -> dict[int, int]:
        with self._lock:
            return {rank: process.pid for rank, process in self._running.items()}

    def spawn(self, rank: int, words: list[str], env: dict[str, str], cwd: str, log: Path) -> int:
        """Starts a worker; only in the main thread: when that ends, the kernel ends the worker."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                system.bound(words, "-X", "utf8"),
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with self._lock:
            self.codes.pop(rank, None)
            self._running[rank] = process
        return process.pid

    def reap(self) -> None:
        """Note the workers that have ended since the last call; kill the rest of their groups."""
        ended = False
        with self._lock:
            for rank, process in list(self._running.items()) if _any_ended() else []:
                if not system.has_ended(process.pid):
                    continue
                system.signal_group(process.pid, signal.SIGKILL)
                self.codes[rank] = process.wait()
                del self._running[rank]
                ended = True
            self._end_orphans(ended)

    def signal(self, number: int) -> None:
        with self._lock:
            for process in self._running.values():
                system.signal_worker(process.pid, number)

    def stop(self, grace: float) -> None:
        """Ask all workers to end, wait, and kill those that are left."""
        if grace > 0:
            self.signal(signal.SIGTERM)
            self._await_end(grace)
        self.signal(signal.SIGKILL)
        self._await_end(AFTER_KILL)

    def _end_orphans(self, ended: bool) -> None:
        """Kill what workers left behind: children of ours with our id in their environment."""
        if ended and not self._running:
            self._sweep_until = time.monotonic() + AFTER_KILL
        if self._running or time.monotonic() > self._sweep_until:
            return
        for pid in system.children():
            if system.has_variable(pid, CONTROLLER, str(os.getpid())):
                self._orphans.add(pid)
        for pid in list(self._orphans):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            self._orphans.discard(pid)

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline:
            time.sleep(_TICK)
            self.reap()


def _any_ended() -> bool:
    """Whether any child has ended: one question to the kernel instead of one for each worker."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
