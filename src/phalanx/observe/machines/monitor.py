"""The machine's own figures, once a second, for about a thousandth of a core."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from phalanx.observe.events.event_types import MachineSample

PERIOD = 1.0
_FIRST = 0.2
"""The first sample comes early, so that a run of half a second has one."""
_KEPT = 60


class Monitor:
    """A thread that samples this machine into a file. Its errors never harm the run."""

    def __init__(self, name: str, path: Path, pids: Callable[[], list[int]]) -> None:
        self._path = path
        self._pids = pids
        self._stop = threading.Event()
        self._fresh: deque[MachineSample] = deque(maxlen=_KEPT)
        self._thread = threading.Thread(
            target=self._run, name=f"phalanx-monitor-{name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; prompt, and harmless when it was never started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=PERIOD)

    def take(self) -> list[MachineSample]:
        """The samples since the last call."""
        taken: list[MachineSample] = []
        while self._fresh:
            taken.append(self._fresh.popleft())
        return taken

    def _run(self) -> None:
        try:
            meter = _Meter(self._pids)
            with self._path.open("ab", buffering=0) as file:
                wait = _FIRST
                while not self._stop.wait(wait):
                    sample = meter.read()
                    file.write(msgspec.json.encode(sample) + b"\n")
                    self._fresh.append(sample)
                    wait = PERIOD
        except Exception:
            return


class _Meter:
    """Differences between successive readings of the system's counters."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._processes: dict[int, psutil.Process] = {}
        psutil.cpu_percent(None)  # the first reading has nothing to compare with
        self._at = time.monotonic()
        self._network = _network_bytes()

    def read(self) -> MachineSample:
        now, network = time.monotonic(), _network_bytes()
        rate = (network - self._network) / max(now - self._at, 1e-6)
        self._at, self._network = now, network
        cpu, memory = self._workers()
        return MachineSample(
            time=now,
            cpu_percent=psutil.cpu_percent(None),
            memory_bytes=psutil.virtual_memory().used,
            network_bytes_per_second=max(rate, 0.0),
            workers_cpu_percent=cpu,
            workers_memory_bytes=memory,
        )

    def _workers(self) -> tuple[float, int]:
        pids = self._pids()
        self._processes = {pid: p for pid, p in self._processes.items() if pid in pids}
        cpu, memory = 0.0, 0
        for pid in pids:
            try:
                if pid not in self._processes:
                    self._processes[pid] = psutil.Process(pid)
                process = self._processes[pid]
                with process.oneshot():
                    cpu += process.cpu_percent(None)
                    memory += process.memory_info().rss
            except psutil.Error:
                continue  # it has just ended
        return cpu, memory


def _network_bytes() -> int:
    counters = psutil.net_io_counters()
    return counters.bytes_sent + counters.bytes_recv if counters else 0
