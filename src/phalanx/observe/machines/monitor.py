"""The machine's own figures, once a second, for about a thousandth of a core."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from phalanx.agent.machine.sampling import FIRST, PERIOD
from phalanx.agent.machine.usage import UsageMeter
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.agent_samples import sample_of

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
        with contextlib.suppress(Exception):
            meter = UsageMeter(self._pids, loopback=True)
            with contextlib.closing(meter), self._path.open("ab", buffering=0) as file:
                wait = FIRST
                while not self._stop.wait(wait):
                    sample = sample_of(meter.read())
                    file.write(msgspec.json.encode(sample) + b"\n")
                    self._fresh.append(sample)
                    wait = PERIOD
