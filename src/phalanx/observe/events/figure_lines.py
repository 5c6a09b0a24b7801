"""Figures that any script can report by printing a line: ``phalanx-figures {"epoch": 0, …}``.

The first process of the run reports for all. A line with ``epoch`` (from 0) ends that epoch:
``seconds`` and ``samples`` of its training, and any other numbers (``train_loss``,
``test_accuracy``, …). A line without it, before the first epoch, describes the training:
``parameters``, ``batch`` (the global one), ``workers``, ``epochs``, ``samples`` (an epoch's), and
how long it took to read and to prepare the data: ``read_seconds``, ``prepare_seconds``; if training
has begun by then, how long ago: ``since_seconds``. In any line, the seconds since the line before
that went into evaluating and into saving: ``evaluate_seconds``, ``checkpoint_seconds``.
This module writes them as the events that a script with ``phalanx.fit`` would have written.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.collect import LineTail
from phalanx.observe.events.event_types import (
    EpochDone,
    Event,
    Finished,
    Joined,
    Logged,
    PhaseDone,
    Planned,
    encode,
)

MARK = b"phalanx-figures "
LONGEST = 1 << 16  # bytes of a line
MOST_NAMES = 64
LARGEST = 1 << 53  # a number beyond this counts as unknown
UNKNOWN = "the script reported no metrics, so epochs, losses and samples/s are unknown"
_LATER = ("evaluate", "checkpoint")
_OWN = {"epoch", "seconds", "samples", "train_loss", "train_accuracy", "rate", "gradient_norm"}
_OWN |= {f"{phase}_seconds" for phase in _LATER}

Values = dict[str, float | None]


@dataclass(frozen=True)
class Told:
    """The processes that the figures are about."""

    machines: Sequence[str]
    """The machine of each rank."""
    workers: int
    """How many of the processes compute."""
    system: str
    seed: int
    threads: Sequence[int]


def is_figures(line: bytes) -> bool:
    return line.startswith(MARK)


def read_line(line: bytes) -> Values | None:
    """The numbers of a line of figures; ``None`` if it is no such line or cannot be read."""
    if not is_figures(line) or len(line) > LONGEST:
        return None
    try:
        found = json.loads(line[len(MARK) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or len(found) > MOST_NAMES:
        return None
    return {name: _number(value) for name, value in found.items() if _is_figure(value)}


class FigureLines:
    """Follows the log of the first rank, and writes the events of all ranks."""

    def __init__(self, paths: RunPaths, told: Told) -> None:
        self._paths, self._told = paths, told
        self._tail = LineTail(paths.log_of(0))
        self._began = time.monotonic()
        self._joined = False
        self._trained = 0.0
        self._later: dict[str, float] = {}
        """Seconds of phases that any line reports."""
        self._epochs = 0

    def poll(self) -> None:
        self._take(self._tail.poll())

    def finish(self, status: str) -> None:
        """Write the last events of all ranks, when the processes have ended."""
        self._take(self._tail.drain())
        self._join({})
        now = time.monotonic()
        if self._epochs:
            self._phase("train", self._trained, now)
        for name, seconds in self._later.items():
            self._phase(name, seconds, now)
        for rank in range(len(self._told.machines)):
            self._write(
                Finished(time=now, rank=rank, status=status, bytes_sent=0, peak_memory=0), rank
            )

    def _take(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            values = read_line(line)
            if values is None:
                continue
            self._join(values)
            for phase in _LATER:
                if (seconds := values.get(f"{phase}_seconds")) is not None:
                    self._later[phase] = self._later.get(phase, 0.0) + max(0.0, seconds)
            if values.get("epoch") is not None:
                self._end_epoch(values)

    def _join(self, values: Values) -> None:
        """Write that every rank joined, when the first line comes or else at the end."""
        if self._joined:
            return
        self._joined = True
        since = values.get("since_seconds") or values.get("seconds") or 0.0
        since = min(max(since, 0.0), time.monotonic() - self._began)
        now, wall = time.monotonic() - since, time.time() - since
        notes = [] if values else [UNKNOWN]
        workers = _whole(values, "workers") or self._told.workers
        for rank, machine in enumerate(self._told.machines):
            joined = Joined(
                time=now, wall=wall, rank=rank, workers=workers, machine=machine, pid=0,
                device="cpu", threads=self._told.threads[rank], precision="float32",
                strategy=self._told.system, parameters=_whole(values, "parameters") or 0,
                seed=self._told.seed, versions={}, notes=notes,
            )  # fmt: skip
            self._write(joined, rank)
        if values:
            told = {name: values.get(f"{name}_seconds") for name in ("read", "prepare")}
            spent = {name: seconds for name, seconds in told.items() if seconds is not None}
            self._phase("start", now - self._began - sum(spent.values()), now)
            for name, seconds in spent.items():
                self._phase(name, seconds, now)
            batch, samples = _whole(values, "batch"), _whole(values, "samples")
            if batch and samples:
                epochs = _whole(values, "epochs")
                self._write(Planned(time=now, rank=0, epochs=epochs, samples=samples, batch=batch))

    def _end_epoch(self, values: Values) -> None:
        now, epoch = time.monotonic(), _whole(values, "epoch") or 0
        seconds = max(0.0, values.get("seconds") or 0.0)
        done = EpochDone(
            time=now,
            rank=0,
            epoch=epoch,
            seconds=seconds,
            samples=_whole(values, "samples") or 0,
            train_loss=values.get("train_loss"),
            train_accuracy=values.get("train_accuracy"),
            rate=values.get("rate"),
            gradient_norm=values.get("gradient_norm"),
        )
        self._write(done)
        self._epochs += 1
        self._trained += seconds
        others = {name: value for name, value in values.items() if name not in _OWN}
        if others:
            self._write(Logged(time=now, rank=0, epoch=epoch, values=others))

    def _phase(self, name: str, seconds: float, now: float) -> None:
        if seconds >= 0:
            self._write(PhaseDone(time=now, rank=0, phase=name, seconds=seconds))

    def _write(self, event: Event, rank: int = 0) -> None:
        # The file may come from another machine, so a link in its place is not followed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        try:
            file = os.open(self._paths.events_of(rank), flags, 0o644)
        except OSError:
            return  # the summary will report a full disk
        try:
            os.write(file, encode(event))
        except OSError:
            return
        finally:
            os.close(file)


def _is_figure(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _number(value: Any) -> float | None:
    """Return a number; ``None`` if it is not finite or too large."""
    if value is None or abs(value) > LARGEST or not math.isfinite(value):
        return None
    return float(value)


def _whole(values: Mapping[str, float | None], name: str) -> int | None:
    value = values.get(name)
    return int(value) if value is not None and value >= 0 else None
