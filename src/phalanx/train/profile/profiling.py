"""``Profiling``: a worker alone that measures its script's steps instead of training to the end.

It gives out batches of several sizes until it has seen enough, lets the script evaluate once,
writes down what it found, and ends the script. What the script writes meanwhile is kept apart.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.files import write_whole
from phalanx.core.settings import ProfileWish
from phalanx.observe.events.emit import EventWriter
from phalanx.rules.ledger import Lease, Segment, lease_of
from phalanx.sync.strategies.strategy import Timing
from phalanx.train.control.directives import Directive
from phalanx.train.engine.engine import NEVER, Engine
from phalanx.train.engine.sample_leases import SampleLeases, least_samples
from phalanx.train.loop.stopwatch import Stopwatch
from phalanx.train.loop.stretches import WorkerParts
from phalanx.train.profile.described import describe_job, trained_tensors
from phalanx.train.profile.readiness import Readiness
from phalanx.train.profile.trial import Trial
from phalanx.train.start.environment import Environment

T = TypeVar("T")
EVALUATION_SHARE = 0.2
"""Of the seconds; what an evaluation takes beyond them is estimated from its batches so far."""
_LEAST_BATCHES = 2


class Profiled(SystemExit):
    """All was measured: the script ends here, and has not failed."""


class Profiling:
    def __init__(self, environment: Environment, wish: ProfileWish, writer: EventWriter) -> None:
        self._environment, self._wish = environment, wish
        self.trial = Trial(wish)
        self.stopwatch = ProfilingStopwatch(self, environment, writer)
        self._parts: WorkerParts | None = None
        self._readiness: Readiness | None = None
        self._saved: list[tuple[Tensor, Tensor]] = []
        self._round = -1
        self._first_step: float | None = None
        self._pass_ended: float | None = None
        self._not_evaluated = 0.0
        """Seconds that the batches of the evaluation which were left out would have taken."""
        self._evaluation = 0.0
        self._samples = 0

    def engine(self, *words: Any) -> Engine:
        return ProfilingEngine(self, *words)

    def watch(self, parts: WorkerParts) -> None:
        """All that the worker trains with is made."""
        self._parts = parts
        parameters = [
            p for o in parts.trained.optimizers for g in o.param_groups for p in g["params"]
        ]
        self._readiness = Readiness(parameters, self.now)

    def now(self) -> float:
        """When the device has done what it was asked to."""
        device = self._environment.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._environment.clock.now()

    # -- steps -------------------------------------------------------------------------------

    def before_batch(self) -> None:
        now = self.now()
        self.trial.end(now)
        if self._first_step is None:
            self._first_step = now
            self._set_alarm()
        if self._round != self.trial.round or self.trial.over:
            self._round = self.trial.round
            self._put_weights_back()

    def has_batch(self) -> None:
        if self.trial.looks_at_gradients and self._readiness is not None:
            self._readiness.begin()

    def has_gradient(self, ready: float) -> None:
        if self.trial.looks_at_gradients and self._readiness is not None:
            self._readiness.end(ready)

    def _put_weights_back(self) -> None:
        """At a rate that is meant for whole batches, small ones may lead to numbers beyond all
        bounds, with which a processor computes at another speed."""
        assert self._parts is not None
        with torch.no_grad():
            if not self._saved:
                tensors = trained_tensors(
                    self._parts.trained.models, self._parts.trained.optimizers
                )
                self._saved = [(tensor, tensor.detach().cpu().clone()) for tensor in tensors]
            for tensor, saved in self._saved:
                tensor.copy_(saved)

    # -- passes and evaluations --------------------------------------------------------------

    def begin_pass(self, samples: int, batch: int) -> None:
        self.leave_pause()
        assert self._parts is not None
        self._samples = samples
        self.trial.plan(batch, samples, least_samples(self._parts.trained.models))

    def end_pass(self) -> None:
        self.trial.drop()
        self._pass_ended = self.now()

    def leave_pause(self, *, ends: bool = True) -> None:
        """What the script did since its pass over the data was an evaluation, if anything."""
        if self._pass_ended is not None:
            took = self.now() - self._pass_ended + self._not_evaluated
            self._evaluation, self._pass_ended = max(self._evaluation, took), None
        self._not_evaluated = 0.0
        if self.trial.over and ends:
            self.write()
            raise Profiled(0)

    def some_of(self, batches: Iterable[T], count: int) -> Iterator[T]:
        """Of the batches of an evaluation as many as there is time for."""
        began = self.now()
        for done, batch in enumerate(batches, start=1):
            yield batch
            took = self.now() - began
            if done >= _LEAST_BATCHES and took > EVALUATION_SHARE * self._wish.seconds:
                self._not_evaluated += took * max(0.0, count / done - 1.0)
                return

    # -- the end -----------------------------------------------------------------------------

    def write(self) -> None:
        """What was found; nothing if there was no step."""
        parts, paths = self._parts, self._environment.paths
        if parts is None or paths is None or parts.lifecycle.over:
            return
        signal_off()
        if self.trial.found and self._readiness is not None:
            started = self._environment.started
            before = (self._first_step or 0.0) - started if started is not None else 0.0
            found = describe_job(
                parts, self.trial, self._readiness.pieces, self._samples,
                start=max(0.0, before), evaluate=self._evaluation,
                spare=sum(saved.nbytes for _, saved in self._saved),
            )  # fmt: skip
            write_whole(paths.profile, msgspec.json.encode(found))
        parts.lifecycle.end("done")

    def _set_alarm(self) -> None:
        """The script may do what no pass and no step belongs to, for as long as it likes."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, self._wish.seconds)

    def _on_alarm(self, _signal: int, _frame: FrameType | None) -> None:
        if self.trial.found:
            self.trial.over = True
            self.leave_pause()
        raise InputError(
            f"no step of the script ended within {self._wish.seconds:g} seconds",
            "Give its profile more seconds, or use a smaller batch.",
        )


def signal_off() -> None:
    with suppress(ValueError):  # of the main thread only
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class ProfilingStopwatch(Stopwatch):
    def __init__(self, profiling: Profiling, environment: Environment, writer: EventWriter) -> None:
        super().__init__(environment.clock, writer)
        self._profiling = profiling

    def asked(self) -> float:
        self._profiling.before_batch()
        now = super().asked()
        self._profiling.trial.begin(now)
        return now

    def received(self, asked: float, samples: int) -> None:
        super().received(asked, samples)
        self._profiling.trial.received(samples, self._profiling.now() - asked)
        self._profiling.has_batch()

    def stepped(self, ready: float, timing: Timing, scale: float = 1.0) -> None:
        self._profiling.trial.updated(self._profiling.now() - ready)
        self._profiling.has_gradient(ready)
        super().stepped(ready, timing, scale)


class ProfilingLeases(SampleLeases):
    def __init__(self, profiling: Profiling) -> None:
        self._profiling, self._trial = profiling, profiling.trial

    def of(
        self, ticket: int, segment: Segment, batch: int, *, fixed: bool = False
    ) -> Iterator[Lease]:
        self._profiling.begin_pass(segment.end - segment.start, batch)
        return self._some(segment, fixed)

    def _some(self, segment: Segment, fixed: bool) -> Iterator[Lease]:
        """Without an end, except that where samples go on from each other a pass has one size."""
        position, first = segment.start, self._trial.wanted
        while not self._trial.over and not (fixed and self._trial.wanted != first):
            size = min(self._trial.wanted, segment.end - segment.start)
            if position + size > segment.end:
                position = segment.start
            yield lease_of(position, 0, size, size, size)
            position += size

    def let_go(self) -> None:
        self._profiling.end_pass()


class ProfilingEngine(Engine):
    timed = True

    def __init__(self, profiling: Profiling, *words: Any) -> None:
        super().__init__(*words)
        self._profiling = profiling
        self.leases = ProfilingLeases(profiling)

    @property
    def cut(self) -> bool:
        return super().cut or self._profiling.trial.over

    def after_stretch(self, ticket: int, lockstep_position: int) -> tuple[int, Directive | None]:
        return NEVER, super().after_stretch(ticket, lockstep_position)[1]

    def end_pass(self) -> None:
        self._profiling.end_pass()

    def some_of(self, batches: Iterable[T], count: int) -> Iterable[T]:
        return self._profiling.some_of(batches, count)

    def begin_epoch(self, epoch: int) -> bool:
        self._profiling.leave_pause()
        return super().begin_epoch(epoch)

    def finish(self, collective: bool) -> None:
        self._profiling.leave_pause(ends=False)
        self._profiling.write()
