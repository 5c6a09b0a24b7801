"""The events of a run, put in order: one log per rank, one entry per step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev


class WorkerStep(NamedTuple):
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
    hidden: float = 0.0
    """Seconds of communication beside the computing: no part of the step's own time."""

    @property
    def ready(self) -> float:
        """When the step's gradient was ready, before any barrier."""
        return self.began + self.input + self.compute

    @property
    def seconds(self) -> float:
        return sum(self[5:12])

    @property
    def is_round(self) -> bool:
        """Whether this is not a step but a synchronisation of workers that train independently."""
        return not self.samples and self.compute == 0.0 and self.input == 0.0

    @property
    def ended(self) -> float:
        return self.began + self.seconds


_LISTS: dict[type[ev.Event], str] = {
    ev.Joined: "joins",
    ev.Planned: "plans",
    ev.EpochDone: "epochs",
    ev.Logged: "logged",
    ev.Switched: "switches",
    ev.Noted: "noted",
    ev.StepRefused: "refused",
    ev.WorkerLost: "lost",
    ev.SamplesSettled: "settled",
    ev.Data: "data",
    ev.Saved: "saved",
    ev.LinksUsed: "links",
}
"""The attributes of ``RankLog`` that keep events unchanged, by the events' types."""


@dataclass
class RankLog:
    """All events of one rank."""

    rank: int
    joins: list[ev.Joined] = field(default_factory=list)
    """The joins of this rank: one, unless its script trains more than once."""
    plans: list[ev.Planned] = field(default_factory=list)
    steps: list[WorkerStep] = field(default_factory=list)
    rounds: list[WorkerStep] = field(default_factory=list)
    """Synchronisations of workers that train independently: communication without a step."""
    phases: dict[str, float] = field(default_factory=dict)
    epochs: list[ev.EpochDone] = field(default_factory=list)
    logged: list[ev.Logged] = field(default_factory=list)
    switches: list[ev.Switched] = field(default_factory=list)
    balanced: list[ev.Balanced] = field(default_factory=list)
    """Shares that were kept; those in ``taken_back`` were tried and reverted."""
    taken_back: list[ev.Balanced] = field(default_factory=list)
    noted: list[ev.Noted] = field(default_factory=list)
    refused: list[ev.StepRefused] = field(default_factory=list)
    lost: list[ev.WorkerLost] = field(default_factory=list)
    """Lost workers that this rank reported."""
    settled: list[ev.SamplesSettled] = field(default_factory=list)
    """What this rank reported about lost workers' samples."""
    gone: ev.SamplesSettled | None = None
    """What another rank reported about this rank's samples, if this rank was lost."""
    data: list[ev.Data] = field(default_factory=list)
    saved: list[ev.Saved] = field(default_factory=list)
    links: list[ev.LinksUsed] = field(default_factory=list)
    finished: ev.Finished | None = None
    """The last event of this rank, unless it joined again: a script may train more than once."""
    left_out: int = 0
    """How many parts of this rank's events were too long to be read."""
    bytes_sent: int | None = None
    last_time: float | None = None

    @property
    def joined(self) -> ev.Joined | None:
        return self.joins[0] if self.joins else None

    @property
    def samples(self) -> int:
        """How many samples this rank trained; for a lost worker, as the parameter store counted."""
        if self.gone is None:
            return sum(step.samples for step in self.steps)
        began = self.joins[-1].time if self.joins else 0.0
        return self.gone.trained + sum(s.samples for s in self.steps if s.began < began)

    @property
    def rows(self) -> list[WorkerStep]:
        """Steps and rounds in the order of time."""
        if not self.rounds:
            return self.steps
        return sorted([*self.steps, *self.rounds], key=lambda row: row.began)

    def add(self, event: ev.Event) -> None:
        """Add one event."""
        match event:
            case ev.Steps():
                for row in _rows(event):
                    (self.rounds if row.is_round else self.steps).append(row)
            case ev.PhaseDone():
                self.phases[event.phase] = self.phases.get(event.phase, 0.0) + event.seconds
            case ev.Balanced():
                (self.balanced if event.refused is None else self.taken_back).append(event)
            case ev.Finished():
                self.finished = event
                self.bytes_sent = (self.bytes_sent or 0) + event.bytes_sent
            case ev.Joined():
                self.finished = None
        if kept := _LISTS.get(type(event)):
            getattr(self, kept).append(event)
        time = event.began[-1] if isinstance(event, ev.Steps) and event.began else None
        time = getattr(event, "time", time)
        if time is not None:
            self.last_time = max(time, self.last_time or time)


def _rows(event: ev.Steps) -> Iterator[WorkerStep]:
    columns = [getattr(event, name) for name in ev.STEP_COLUMNS]
    columns[-1] = columns[-1] or [0.0] * len(event.began)
    for index, column in enumerate(zip(*columns, strict=False)):
        yield WorkerStep(event.rank, event.epoch, event.first + index, *column)


def read_ranks(paths: RunPaths) -> list[RankLog]:
    """Return the logs of all ranks that wrote events, in the order of the ranks."""
    logs = []
    for file in paths.events.glob("rank-*.jsonl") if paths.events.is_dir() else ():
        found = re.fullmatch(r"rank-(\d+)", file.stem)
        if not found:
            continue
        log = RankLog(int(found[1]))
        for event in ev.read_events(file):
            if event is None:
                log.left_out += 1
            else:
                log.add(event)
        logs.append(log)
    gone = {event.worker: event for log in logs for event in log.settled}
    for log in logs:
        log.gone = gone.get(log.rank)
    return sorted(logs, key=lambda log: log.rank)
