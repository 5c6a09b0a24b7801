"""Readings of machines as samples of the run: those that agents send, and this machine's own, once
a second, which take about a thousandth of a core."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from phalanx.agent.machine.sampling import FIRST, PERIOD
from phalanx.agent.machine.usage import UsageMeter
from phalanx.observe.events.event_types import MachineSample


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """The watts that a machine counts separately, and whose sum is in a sample."""

    gpu_watts: float | None = None
    cpu_watts: float | None = None


def sample_of(tell: dict[str, Any], clock_offset: float = 0.0) -> MachineSample:
    """Convert a reading, perhaps of another machine, to a sample, with its types checked.
    ``clock_offset``: seconds from the machine's clock to that of the run."""
    sample, power = msgspec.convert(tell, MachineSample), msgspec.convert(tell, Power)
    known = [each for each in (power.cpu_watts, power.gpu_watts) if each is not None]
    return msgspec.structs.replace(
        sample,
        time=sample.time + clock_offset,
        cpu_source=sample.cpu_source[:20] if sample.cpu_source else None,
        watts=sum(known) if known else None,
    )


class ToldSample(MachineSample, frozen=True, kw_only=True):
    """A sample as it is kept, with its time on the machine's own clock."""

    at: float


class SampleReader:
    """Reads one machine's samples in order; skips invalid ones and those that go back in time."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def go_on_after(self, last: ToldSample) -> None:
        """Skip the samples up to ``last``, which have been read before."""
        self._last = last.at

    def read(self, tell: dict[str, Any], clock_offset: float = 0.0) -> ToldSample | None:
        try:
            sample = sample_of(tell)
        except msgspec.ValidationError:
            return None
        if sample.time <= self._last:
            return None
        self._last = sample.time
        known = msgspec.structs.asdict(sample)
        return ToldSample(**{**known, "time": sample.time + clock_offset}, at=sample.time)


class Monitor:
    """A thread that samples this machine into a file. Errors in it never end the run."""

    def __init__(
        self, name: str, path: Path, pids: Callable[[], list[int]], clock_offset: float = 0.0
    ) -> None:
        self._path, self._clock_offset = path, clock_offset
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"phalanx-monitor-{name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; wait for it for ``PERIOD`` at most, or not if it was never started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=PERIOD)

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            meter = UsageMeter(self._pids, loopback=True)
            with contextlib.closing(meter), self._path.open("ab", buffering=0) as file:
                wait = FIRST
                while not self._stop.wait(wait):
                    sample = sample_of(meter.read(), self._clock_offset)
                    file.write(msgspec.json.encode(sample) + b"\n")
                    wait = PERIOD
