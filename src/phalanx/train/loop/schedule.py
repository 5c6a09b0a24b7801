"""The way through the data: which stretch comes next, under which strategy, from where.

A pass is cut into stretches: where a phase of the strategy ends, where shares change, where a
command is taken (another strategy, a checkpoint). Every worker comes to the same stretches.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from phalanx.core.errors import InputError, PeerLost
from phalanx.core.spec import Phase, Spec, parse_spec
from phalanx.data.ledger import Lease, Segment
from phalanx.sync.policy.switch_points import boundaries, segments
from phalanx.sync.state.shard_optimizer import is_elementwise
from phalanx.train.control.command_cells import Command, Kind
from phalanx.train.control.switching import Switching
from phalanx.train.loop.engine import Engine
from phalanx.train.loop.passes import Pass, loaded

STRETCHES_PER_PASS = 1 << 16  # tickets that one pass may use

Source = Iterator[tuple[Lease, Any]]


@dataclass(frozen=True)
class ResumePoint:
    """Where a resumed run goes on."""

    epoch: int
    pass_number: int
    position: int
    phase: int = 0
    first_pass: int = 0
    """The number of the first pass of that epoch."""


class Schedule:
    def __init__(self, engine: Engine, spec: Spec, start: ResumePoint | None) -> None:
        self.engine, self.spec = engine, spec
        self.epochs: int | None = None
        self.first_pass = 0
        """The number of the first pass of the epoch in hand."""
        self.switching = Switching(engine)
        self.phase = 0
        """Which phase of the spec is under way."""
        self.position = 0
        """How far the pass in hand has been used by all; exact between stretches."""
        self.on_save: Callable[[Pass], None] | None = None
        self.before_stop: Callable[[], None] | None = None
        self.on_stop: Callable[[], None] | None = None
        """Called when a checkpoint was taken because all have to stop: ends the training."""
        self.before_switch: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self._start, self._detour = start, False
        if start is not None:
            self.phase, self._detour = start.phase, spec.on_straggler and start.phase == 1

    @property
    def start(self) -> ResumePoint:
        return self._start or ResumePoint(0, 0, 0)

    def through(
        self, current: Pass, device: torch.device, *, channels_last: bool
    ) -> Iterator[Source]:
        """The stretches of a pass, each as its batches; consume one before asking for the next."""
        self.position, ticket = self.begin_at(current), current.number * STRETCHES_PER_PASS
        if self._start is not None and current.number == self._start.pass_number and self.on_resume:
            self.on_resume()
        while self.position < current.samples:
            segment = self._next(current)
            self._enter(segment, current)
            # What is claimed ahead, others wait for; scripted time has no threads beside it.
            ahead = (2 if self.engine.lockstep else 1) if self.engine.background else 0
            self._reached = segment.end
            over = False
            while not over:
                found = self.engine.leases(ticket, segment, current.batch, fixed=current.fixed)
                try:
                    yield loaded(current, found, device, ahead=ahead, channels_last=channels_last)
                except GeneratorExit:
                    with contextlib.suppress(PeerLost):
                        self.engine.let_go()
                    raise
                over = self.engine.complete(ticket)
            self.position, command = self.engine.after_stretch(ticket, self._reached)
            self._take(command, current)
            ticket += 1
        self.engine.rest()

    def reached(self, lease: Lease) -> bool:
        """In lockstep, after each batch: whether the stretch ends here."""
        if not self.engine.lockstep or not self.engine.cut:
            return False
        if self.engine.apart and not lease.ends_round:
            return False
        self._reached = lease.batch_end
        return True

    def begin_at(self, current: Pass) -> int:
        """Where a pass begins: not at its start if the run was resumed in the middle of it."""
        start = self._start
        if start is None or current.number > start.pass_number:
            return 0
        if current.number < start.pass_number:
            return current.samples
        return min(start.position, current.samples)

    def _next(self, current: Pass) -> Segment:
        if self.spec.on_straggler:
            return Segment(self.position, current.samples, int(self._detour))
        ends = boundaries(self.spec, self.epochs, current.samples, current.batch)
        parts = segments(current.epoch, current.samples, ends)
        part = next(part for part in parts if part.end > self.position)
        return Segment(self.position, part.end, part.phase)

    def _enter(self, segment: Segment, current: Pass, *, regroup: bool = False) -> None:
        self.phase = segment.phase
        phase: Phase = self.spec.phases[segment.phase]
        another = phase.label != self.engine.phase and self.engine.workers > 1
        if another and self.before_switch is not None:
            self.before_switch()
        point = current.epoch + segment.start / current.samples
        self.switching.enter(phase, self.spec, point, regroup=regroup)

    def _take(self, command: Command | None, current: Pass) -> None:
        if command is None:
            return
        if command.kind is Kind.SAVE:
            if self.on_save is not None:
                self.on_save(current)
        elif command.kind is Kind.STOP:
            self._stop(current)
        elif command.kind is Kind.SWITCH:
            self._follow(command.spec, current)
        elif command.kind is Kind.REGROUP:
            if self.position < current.samples:
                self._enter(self._next(current), current, regroup=True)
        else:
            self._detour = command.kind is Kind.LEAVE

    def _stop(self, current: Pass) -> None:
        if self.before_stop is not None:
            self.before_stop()
        if self.on_save is not None:
            self.on_save(current)
        if self.on_stop is not None:
            self.on_stop()

    def _follow(self, text: str, current: Pass) -> None:
        """Another spec from here on, unless this training cannot follow it: all find the same."""
        try:
            spec = parse_spec(text)
            self._check(spec, current)
        except InputError as error:  # no reason to end a training
            if self.engine.rank == 0:
                say_refused(error)
            return
        if spec.text != self.spec.text:
            self.spec, self._detour = spec, False

    def _check(self, spec: Spec, current: Pass) -> None:
        if any(phase.name == "single" for phase in spec.phases):
            raise InputError("'single' has one worker", "Use another strategy.")
        if current.fixed:
            check_fixed(spec)
        if not spec.on_straggler:
            boundaries(spec, self.epochs, current.samples, current.batch)
        if all(phase.traits.any_optimizer for phase in spec.phases):
            return
        for replica in self.engine.replicas:
            if not is_elementwise(replica.optimizer):
                kind = type(replica.optimizer).__name__
                raise InputError(f"the optimizer {kind} cannot run in the store", "Use allreduce.")


def check_fixed(spec: Spec) -> None:
    """Columns can be kept only where everybody has a part of each batch."""
    free = next((phase.label for phase in spec.phases if not phase.traits.lockstep), None)
    if free is not None:
        raise InputError(
            f"fixed=True does not go with {free}: a worker takes the next samples when it is free",
            "Use allreduce, bsp, localsgd or diloco.",
        )


def say_refused(error: InputError) -> None:
    with contextlib.suppress(OSError):
        line = f"phalanx: switch refused: {error.cause}; training goes on as before"
        print(line, file=sys.stderr, flush=True)
