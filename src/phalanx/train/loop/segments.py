"""Trains a pass in segments, between which all workers carry out what they decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from phalanx.core.errors import InputError, PeerLost, RunStopped
from phalanx.core.settings import AUTOCASTS
from phalanx.policies.sample_assignment import Lease, Segment
from phalanx.train.checkpoint.checkpointing import Checkpointer, Trained
from phalanx.train.control.directives import Directive, Kind, say_refused
from phalanx.train.figures.epoch_figures import Figures
from phalanx.train.figures.evaluation import Evaluator
from phalanx.train.figures.training_events import TrainingEvents
from phalanx.train.loop.rate_schedules import RateSchedules
from phalanx.train.loop.same_data import CheckedReaders
from phalanx.train.samples.epoch_batches import Pass, loaded
from phalanx.train.samples.schedule import TrainingSchedule
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle
from phalanx.train.start.seed import CommonSeed
from phalanx.train.step.carried_state import CarriedState
from phalanx.train.step.stepper import Stepper
from phalanx.train.step.stopwatch import Stopwatch

if TYPE_CHECKING:
    from phalanx.train.checkpoint.resuming import Resumed

PER_PASS = 1 << 16  # most tickets of one pass

Source = Iterator[tuple[Lease, Any]]


@dataclass(frozen=True)
class WorkerParts:
    """All that a worker trains with, as ``build_worker`` makes it."""

    environment: Environment
    trained: Trained
    schedule: TrainingSchedule
    stopwatch: Stopwatch
    lifecycle: Lifecycle
    events: TrainingEvents
    evaluator: Evaluator
    checkpointer: Checkpointer
    figures: Figures
    steps: Stepper
    rates: RateSchedules
    carried: CarriedState | None
    resumed: Resumed | None
    seeds: CommonSeed
    precision: str
    rounding: ExitStack
    """Restores the script's TF32 settings when it is closed at the end."""
    readers: CheckedReaders


class Segments:
    def __init__(self, parts: WorkerParts) -> None:
        self._parts, self._engine = parts, parts.trained.engine
        self._schedule, self._steps = parts.schedule, parts.steps
        self.reached = 0
        """The end of the present segment, also if it is cut."""
        self.end_switch: Callable[[float], None] | None = None
        """Ends a switch when the first new step begins."""

    def of(self, current: Pass) -> Iterator[Source]:
        """Yield the segments of a pass, each as its batches; consume one before the next."""
        schedule, engine, leases = self._schedule, self._engine, self._engine.leases
        ticket = current.number * PER_PASS
        schedule.position = schedule.begin_at(current)
        restored = current.adopted and engine.workers == 1 and schedule.position == 0
        if self._parts.resumed is not None and schedule.resumes_in(current) and not restored:
            self._parts.resumed.restore_random()
        while segment := schedule.next(current):
            self._enter(segment, current)
            self.reached, over = segment.end, False
            leases.use_lanes(current.lanes)
            while not over:
                if current.lanes is not None:
                    current.lanes.go_to(segment.start)
                found = leases.of(
                    ticket, segment, current.batch, fixed=current.fixed, counted=current.counted
                )
                try:
                    yield self._loaded(current, found)
                except GeneratorExit:
                    with suppress(PeerLost):
                        leases.let_go()
                    raise
                over = leases.complete(ticket)
            schedule.position, directive = engine.directives.after_segment(ticket, self.reached)
            leases.end_lanes(ticket)
            if current.lanes is not None:
                current.lanes.came_to(schedule.position, lockstep=engine.lockstep)
            self._carry_out(directive, current)
            ticket += 1
        engine.rest()

    def _loaded(self, current: Pass, found: Iterator[Lease]) -> Source:
        # Claim few ahead, as other workers wait for them; in scripted time nothing reads ahead.
        ahead = (2 if self._engine.lockstep else 1) if self._engine.background else 0
        device = torch.device("cpu") if current.adopted else self._parts.environment.device
        channels_last = self._parts.precision in AUTOCASTS
        return loaded(current, found, device, ahead=ahead, channels_last=channels_last)

    # -- what all workers carry out together -------------------------------------------------

    def _carry_out(self, directive: Directive | None, current: Pass) -> None:
        match directive:
            case Directive(Kind.SAVE):
                self._parts.checkpointer.save(current)
            case Directive(Kind.STOP):
                self._stop(current)
            case Directive(Kind.SWITCH, spec):
                try:
                    self._schedule.follow(spec, current)
                except InputError as error:  # the training goes on
                    if self._parts.environment.rank == 0:
                        say_refused(error)
            case Directive(Kind.REGROUP):
                if segment := self._schedule.next(current):
                    self._enter(segment, current, regroup=True)
            case Directive(Kind.LEAVE | Kind.RETURN as kind):
                self._schedule.detour = kind is Kind.LEAVE

    def _enter(self, segment: Segment, current: Pass, *, regroup: bool = False) -> None:
        """Enter the phase of ``segment``. Collective if the phase changes."""
        schedule, engine, before = self._schedule, self._engine, self._engine.phase
        schedule.phase = segment.phase
        phase = schedule.spec.phases[segment.phase]
        if phase.label != before and engine.workers > 1:
            self._steps.step_before_switch()
        arrived = engine.enter(phase, schedule.spec, regroup=regroup)
        is_first = self._parts.environment.rank == 0
        if is_first and arrived is not None and before != engine.phase:  # otherwise it is regrouped
            point, switched = current.epoch + segment.start / current.samples, engine.phase
            self.end_switch = lambda now: self._parts.events.switched(
                point, before, switched, now, now - arrived
            )

    def _stop(self, current: Pass) -> None:
        """Save, wait until that is written, and end together with the others."""
        checkpointer = self._parts.checkpointer
        self._parts.lifecycle.obey()
        checkpointer.save(current)
        try:
            self._engine.barrier()  # a worker may wait once all have begun to write
            checkpointer.finish()
            self._engine.leave()
        except PeerLost:  # from a worker that could not wait
            checkpointer.finish()
        raise RunStopped
