"""The events of a run, put in order: one log per rank, one entry per step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.core.errors import InputError
from phalanx.core.run_paths import RunPaths
from phalanx.core.spec import parse_spec
from phalanx.observe import events as ev

_CLOCK_ERROR = 1e-6
"""Durations that are added up miss the clock by less than this."""


class Step(NamedTuple):
    """One step of one rank; the durations follow each other in the order of the fields."""

    rank: int
    epoch: int
    number: int
    began: float
    samples: int
    input: float
    compute: float
    send: float
    wait: float
    reduce: float
    update: float
    settle: float
    staleness: int
    loss: float | None

    @property
    def ready(self) -> float:
        """When its gradient was ready, before any barrier."""
        return self.began + self.input + self.compute

    @property
    def seconds(self) -> float:
        return sum(self[5:12])

    @property
    def ended(self) -> float:
        return self.began + self.seconds


@dataclass
class RankLog:
    """Everything one rank said."""

    rank: int
    joined: ev.Joined | None = None
    planned: ev.Planned | None = None
    steps: list[Step] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    epochs: list[ev.EpochDone] = field(default_factory=list)
    logged: list[ev.Logged] = field(default_factory=list)
    switches: list[ev.Switched] = field(default_factory=list)
    data: list[ev.Data] = field(default_factory=list)
    saved: list[ev.Saved] = field(default_factory=list)
    finished: ev.Finished | None = None
    """Its last word, unless it joined again: a script may train more than once."""
    bytes_sent: int | None = None
    last_time: float | None = None

    def add(self, event: ev.Event) -> None:
        """Take in one event."""
        match event:
            case ev.Steps():
                self.steps.extend(_rows(event))
            case ev.PhaseDone():
                self.phases[event.phase] = self.phases.get(event.phase, 0.0) + event.seconds
            case ev.EpochDone():
                self.epochs.append(event)
            case ev.Logged():
                self.logged.append(event)
            case ev.Switched():
                self.switches.append(event)
            case ev.Data():
                self.data.append(event)
            case ev.Saved():
                self.saved.append(event)
            case ev.Joined():
                self.joined, self.finished = self.joined or event, None
            case ev.Planned():
                self.planned = event
            case ev.Finished():
                self.finished = event
                self.bytes_sent = (self.bytes_sent or 0) + event.bytes_sent
        time = event.began[-1] if isinstance(event, ev.Steps) and event.began else None
        time = getattr(event, "time", time)
        if time is not None:
            self.last_time = max(time, self.last_time or time)


def _rows(event: ev.Steps) -> Iterator[Step]:
    columns = zip(
        event.began, event.samples, event.input, event.compute, event.send, event.wait,
        event.reduce, event.update, event.settle, event.staleness, event.loss,
        strict=False,
    )  # fmt: skip
    for index, column in enumerate(columns):
        yield Step(event.rank, event.epoch, event.first + index, *column)


def read_ranks(paths: RunPaths) -> list[RankLog]:
    """The logs of all ranks that wrote events, by rank."""
    logs = []
    for file in paths.events.glob("rank-*.jsonl") if paths.events.is_dir() else ():
        found = re.fullmatch(r"rank-(\d+)", file.stem)
        if not found:
            continue
        log = RankLog(int(found[1]))
        for event in ev.read_events(file):
            log.add(event)
        logs.append(log)
    return sorted(logs, key=lambda log: log.rank)


@dataclass(frozen=True)
class PhaseSteps:
    """The steps of one phase of the strategy: a list per rank, in the order of the ranks."""

    name: str
    lockstep: bool
    steps: list[list[Step]]


def split_phases(ranks: list[RankLog], strategy: str) -> list[PhaseSteps]:
    """The steps of each phase; a strategy that cannot be read is one phase without lockstep."""
    try:
        phases = [(phase.label, phase.traits.lockstep) for phase in parse_spec(strategy).phases]
    except InputError:
        phases = [(strategy, False)]
    spoken = next((log.switches for log in ranks if log.switches), [])
    found: list[list[list[Step]]] = [[] for _ in phases]
    for log in ranks:
        ends = [switch.time for switch in log.switches or spoken]
        parts = _split(log.steps, ends, len(phases))
        for phase, part in zip(found, parts, strict=True):
            phase.append(part)
    return [PhaseSteps(*phase, part) for phase, part in zip(phases, found, strict=True)]


def _split(steps: Iterable[Step], ends: list[float], parts: int) -> list[list[Step]]:
    split: list[list[Step]] = [[] for _ in range(parts)]
    for step in steps:
        # The switch is told when its first step has begun, so that step contains the moment.
        index = sum(step.ended > end + _CLOCK_ERROR for end in ends)
        split[min(index, parts - 1)].append(step)
    return split
