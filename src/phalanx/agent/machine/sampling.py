"""Samples the machine's figures once a second, and sends them to the controller if it wants them.

The samples of a detached run are also kept, for a controller that comes back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phalanx.agent.machine.usage import UsageMeter
from phalanx.agent.wire import Connection
from phalanx.agent.workers import Workers

FILE = "samples.jsonl"
MOST = 16 << 20
"""Bytes of the file at which its older half is dropped. Without a controller that takes about a
year (see ``pause``); with one, the older half was sent to it hours ago."""
LONGEST_LINE = 1 << 12
_ADD = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
PERIOD = 1.0
FIRST = 0.2
"""Seconds until the first sample: few, so that a run of half a second has one."""
ALONE_PARTS = 3600


class KeptSamples:
    """Samples of a detached run, kept on the machine for the controller that comes back: one file
    in the run's folder, a sample a line; what cannot be written is not kept."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            os.close(os.open(str(self._path), _ADD | os.O_CREAT, 0o600))

    def add(self, sample: dict[str, Any]) -> None:
        """Append a sample, unless the file was removed when the run was cleaned up."""
        line = json.dumps(sample, allow_nan=False).encode() + b"\n"
        with contextlib.suppress(OSError):
            with os.fdopen(os.open(str(self._path), _ADD), "ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if file.write(line) != len(line):  # the disk is full: half a line spoils the next
                    file.truncate(size)
            if size > MOST:
                self._drop_older_half()

    def later(self, after: float) -> Iterator[dict[str, Any]]:
        """Yield the samples later than ``after``, in order."""
        try:
            descriptor = os.open(str(self._path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        with os.fdopen(descriptor, "rb") as file:
            for line in iter(lambda: file.readline(LONGEST_LINE), b""):
                sample = _read(line)
                if sample is not None and sample["time"] > after:
                    yield sample

    def _drop_older_half(self) -> None:
        new = self._path.with_suffix(".new")
        with self._path.open("rb") as old, new.open("wb") as file:
            old.seek(MOST // 2)
            old.readline()
            shutil.copyfileobj(old, file)
        new.replace(self._path)


def _read(line: bytes) -> dict[str, Any] | None:
    """Return the sample in a line of the file; ``None`` if it has none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("time"), float) else None


def pause(alone: float) -> float:
    """Return the seconds to the next sample after ``alone`` seconds without a controller.

    That is one second in the first hour, then 1/3600 of ``alone``: fine enough for a plot of the
    whole run, and ten megabytes in a week. Rates (processor time, bytes, joules) cover all the time
    since the sample before, so that fewer samples leave nothing out.
    """
    return max(PERIOD, alone / ALONE_PARTS)


class Sampler:
    """A thread that sends the controller a sample now and then; its errors never harm the run."""

    def __init__(
        self,
        workers: Workers,
        connection: Callable[[], Connection | None],
        kept: KeptSamples | None,
    ) -> None:
        """``connection`` returns the connection to the present controller, if there is one."""
        self._workers, self._connection, self._kept = workers, connection, kept
        self._hearer: Connection | None = None
        self._heard = time.monotonic()
        self._telling = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def tell_to(self, hearer: Connection | None, after: float | None) -> None:
        """Send samples to ``hearer`` from now on; first the kept ones later than ``after``."""
        with self._telling:  # a new sample has to wait, or it would be sent before older ones
            if hearer is not None and after is not None and self._kept is not None:
                tell_all(hearer, self._kept, after)
            self._hearer, self._heard = hearer, time.monotonic()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PERIOD)

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # the machine goes on without figures
            meter = UsageMeter(lambda: list(self._workers.pids.values()))
            with contextlib.closing(meter):
                self._sample(meter)

    def _sample(self, meter: UsageMeter) -> None:
        wait, read = FIRST, float("-inf")
        while not self._stop.wait(wait):
            wait, now, over = PERIOD, time.monotonic(), self._is_over()
            if over or now - read > pause(now - self._heard) - PERIOD / 2:
                read = now
                self._pass_on(meter.read())
            if over:
                return

    def _is_over(self) -> bool:
        """Whether all workers have ended: the days that a detached agent stays are not sampled."""
        workers = self._workers
        return bool(self._kept is not None and workers.codes and not workers.pids)

    def _pass_on(self, figures: dict[str, Any]) -> None:
        with self._telling:
            if self._kept is not None:  # even if it is sent: it may never arrive
                self._kept.add(figures)
            if self._hearer is not None and self._hearer is self._connection():
                self._heard = time.monotonic()
                self._hearer.send({**figures, "tell": "sample"})


def tell_all(hearer: Connection, kept: KeptSamples, after: float) -> None:
    for figures in kept.later(after):
        hearer.send({**figures, "tell": "sample"})
