"""``Profiling``: measures a script's steps on a worker alone, instead of training to the end.

It gives out batches of several sizes until it has seen enough, lets the script evaluate once,
writes down what it found, and ends the script. What the script writes meanwhile is kept apart.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.context import be_advised_by
from phalanx.core.errors import InputError
from phalanx.core.files import write_whole
from phalanx.observe.events.emit import EventWriter
from phalanx.plan.job import JobProfile
from phalanx.policies.sample_assignment import Lease, Segment, lease_of
from phalanx.sync.state.shard_optimizer import is_elementwise
from phalanx.sync.strategy import Timing
from phalanx.train.control.directives import CommandPoller, Directive, DirectiveTaker
from phalanx.train.engine.engine import NEVER, Engine
from phalanx.train.engine.sample_leases import SampleLeases, least_samples
from phalanx.train.loop.segments import WorkerParts
from phalanx.train.profile.trial import Trial, costs_of
from phalanx.train.start.environment import Environment
from phalanx.train.step.stopwatch import Stopwatch

T = TypeVar("T")
EVALUATION_SHARE = 0.2
"""The share of a profile's seconds for the first batches of an evaluation."""
_LEAST_BATCHES = 2
PATIENCE = 12
"""The first step may take this many times the seconds of a profile."""


class Profiling(Stopwatch):
    """A stopwatch that runs a profile: it decides which batches come next, and when to end."""

    _parts: WorkerParts
    _readiness: Readiness
    _trained: list[Tensor]

    def __init__(self, environment: Environment, seconds: float, writer: EventWriter) -> None:
        super().__init__(environment.clock, writer)
        self._environment, self._seconds = environment, seconds
        self.trial = Trial(seconds)
        self._saved: list[tuple[Tensor, Tensor]] = []
        self._size = -1
        self._first_step: float | None = None
        self._pass_ended: float | None = None
        self._evaluation = self._not_evaluated = 0.0
        """Seconds of an evaluation, and the estimated seconds of batches that it left out."""
        self._of_pass = self._given = self._whole = 0
        """Samples of the script's pass, of those given out in it so far, and of a whole batch."""
        self._ended = False
        self._late = 0  # alarms before the first step was done

    def watch(self, parts: WorkerParts) -> None:
        """Begin to measure, once everything that the worker trains with is made."""
        optimizers = parts.trained.optimizers
        self._trained = parameters_of(optimizers)
        self._parts, self._readiness = parts, Readiness(self._trained, self.now)
        parts.rates.hold()
        be_advised_by(self._forgive)

    def now(self) -> float:
        """Wait until the device has finished its work, and return the time."""
        device = self._environment.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self.clock.now()

    # -- steps -------------------------------------------------------------------------------

    def asked(self) -> float:
        now, trial = self.now(), self.trial
        trial.end(now)
        if self._first_step is None:
            self._first_step = now
            self._set_alarm(self._seconds)
        changes = self._size != trial.wanted
        if trial.over or (changes and trial.begins):
            self._put_weights_back()
        if changes:
            self._size = trial.wanted
            # Tensors of another size leave gaps, which a run with one size would not have.
            with suppress(AttributeError):  # the C library may have no malloc_trim
                ctypes.CDLL(None).malloc_trim(0)
        if trial.over:
            self._given = 0  # the pass ends here: no later error comes from its repetition
            left = self._first_step + self._seconds - now
            self._set_alarm(max(left, 1.5 * EVALUATION_SHARE * self._seconds))
        now = super().asked()
        trial.begin(now)
        return now

    def received(self, asked: float, samples: int) -> None:
        super().received(asked, samples)
        self._given += max(samples, self._whole)  # a script counts batches, not their samples
        self.trial.received(samples, self.now() - asked)
        if self.trial.begins:
            self._readiness.begin()

    def stepped(self, ready: float, timing: Timing, scale: float = 1.0) -> None:
        self.trial.updated(self.now() - ready)
        if self.trial.begins:
            self._readiness.end(ready)
        super().stepped(ready, timing, scale)

    def _put_weights_back(self) -> None:
        """Restore the weights: small batches, at a learning rate for whole ones, may make them grow
        without bounds, and processors compute with such numbers at another speed."""
        with torch.no_grad():
            if not self._saved:
                self._saved = [(t, t.detach().cpu().clone()) for t in self._tensors()]
            for tensor, saved in self._saved:
                tensor.copy_(saved)

    def _tensors(self) -> list[Tensor]:
        """Return parameters and buffers, each once."""
        models = self._parts.trained.models
        found = [t for m in models for t in (*m.parameters(), *m.buffers())]
        return list({id(t): t for t in (*found, *self._trained)}.values())

    # -- passes and evaluations --------------------------------------------------------------

    def begin_pass(self, samples: int, batch: int) -> None:
        self.leave_pause()
        self._of_pass, self._given, self._whole = samples, 0, batch
        self.trial.plan(batch, samples, least_samples(self._parts.trained.models))

    def end_pass(self) -> None:
        self._pass_ended = self.now()
        self.trial.end(self._pass_ended)  # a script that breaks after its step has done a whole one
        self.trial.drop()

    def leave_pause(self, *, ends: bool = True) -> None:
        """Count the time since the last pass as an evaluation; end the script if ``ends``."""
        if self._pass_ended is not None:
            took = self.now() - self._pass_ended + self._not_evaluated
            self._evaluation, self._pass_ended = max(self._evaluation, took), None
        self._not_evaluated = 0.0
        if self.trial.over and ends:
            self._ended = True
            self.write()
            raise SystemExit(0)  # everything was measured: the script ends here without failing

    def some_of(self, batches: Iterable[T], count: int) -> Iterator[T]:
        """Yield as many batches of an evaluation as there is time for."""
        began, before, self._given = self.now(), self._not_evaluated, 0
        for done, batch in enumerate(batches, start=1):
            try:
                yield batch
            except GeneratorExit:  # the script has enough of them
                self._not_evaluated = before
                raise
            took = self.now() - began
            self._not_evaluated = before + took * max(0.0, count / done - 1.0)
            if done >= _LEAST_BATCHES and took > EVALUATION_SHARE * self._seconds:
                return

    def write(self) -> None:
        """Write the profile; nothing if there was no step."""
        paths = self._environment.paths
        if paths is None or self._parts.lifecycle.over:
            return
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if self.trial.found:
            write_whole(paths.profile, msgspec.json.encode(self._describe()))
        self._parts.lifecycle.end("done")

    def _forgive(self, error: BaseException) -> str:
        """End a script well whose error the profile has provoked, by more batches than a pass has
        or by its end: the figures measured until then hold."""
        repeats = self._given > self._of_pass
        if not self.trial.found or not (self._ended or repeats):
            return ""
        if repeats:
            said = f"only a profile repeats the step at which the script failed: {error!r}"
            self._parts.figures.say_once(said)
        self.write()
        raise SystemExit(0)

    def _describe(self) -> JobProfile:
        parts, environment = self._parts, self._environment
        optimizers, started = parts.trained.optimizers, environment.started
        if (epochs := parts.schedule.epochs) is None:
            said = "the script does not say how many epochs it trains: counted as one"
            parts.figures.say_once(said)
        values = (v for o in optimizers for state in o.state.values() for v in state.values())
        states = [value for value in values if isinstance(value, Tensor)]
        before = (self._first_step or 0.0) - started if started is not None else 0.0
        costs = msgspec.structs.replace(
            costs_of(self.trial.found),
            evaluate=self._evaluation,
            start=max(0.0, before),
            memory=self._peak_memory(),
        )
        return JobProfile(
            key="",
            gradient_bytes=sum(p.nbytes for p in self._trained if p.requires_grad),
            state_bytes=sum(t.nbytes for t in (*self._tensors(), *states)),
            batch=self.trial.batch,
            samples=self._of_pass,
            epochs=epochs or 1,
            ready=self._readiness.pieces,
            elementwise=all(is_elementwise(optimizer) for optimizer in optimizers),
            costs={environment.machine: costs},
        )

    def _peak_memory(self) -> int:
        if self._environment.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._environment.device)
        spare = sum(saved.nbytes for _, saved in self._saved)  # only measuring has used that memory
        return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - spare)

    def _set_alarm(self, seconds: float) -> None:
        """Set an alarm: the script may do something other than passes and steps for long."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _on_alarm(self, _signal: int, _frame: FrameType | None) -> None:
        if self.trial.found:
            self.trial.over = True
            self.leave_pause()
        self._late += 1
        if self._late < PATIENCE:  # on a slow machine, or under a quota, one step is enough
            return self._set_alarm(self._seconds)
        cause = f"no step of an optimizer ended within {PATIENCE * self._seconds:g} seconds"
        raise InputError(cause, "Use a smaller batch, or leave the machine out with --machines.")


class _ProfilingLeases(SampleLeases):
    def __init__(self, profiling: Profiling) -> None:
        self._profiling, self._trial = profiling, profiling.trial

    def of(
        self, ticket: int, segment: Segment, batch: int, *, fixed: bool = False, **_: bool
    ) -> Iterator[Lease]:
        self._profiling.begin_pass(segment.end - segment.start, batch)
        return self._some(segment, fixed)

    def _some(self, segment: Segment, fixed: bool) -> Iterator[Lease]:
        """Yield leases as long as the script takes steps. With ``fixed``, a pass has one size."""
        position, first, updates = segment.start, self._trial.wanted, self._trial.updates
        while not self._trial.over and not (fixed and self._trial.wanted != first):
            size = min(self._trial.wanted, segment.end - segment.start)
            if position + size > segment.end:
                if self._trial.updates == updates:
                    return  # the script only looks at the data
                position = segment.start
            yield lease_of(position, 0, size, size, size)
            position += size

    def let_go(self) -> None:
        self._profiling.end_pass()


class _ProfilingDirectives(DirectiveTaker):
    def __init__(self, source: CommandPoller | None, profiling: Profiling) -> None:
        super().__init__(source)
        self._profiling = profiling

    @property
    def cut(self) -> bool:
        return super().cut or self._profiling.trial.over

    def after_segment(self, ticket: int, position: int) -> tuple[int, Directive | None]:
        return NEVER, super().after_segment(ticket, position)[1]


class ProfilingEngine(Engine):
    timed = True

    def __init__(self, profiling: Profiling, *words: Any) -> None:
        super().__init__(*words)
        self._profiling, self.leases = profiling, _ProfilingLeases(profiling)
        self.directives = _ProfilingDirectives(self.directives.source, profiling)

    def end_pass(self, *, adopted: bool = False) -> None:
        self._profiling.end_pass()

    def some_of(self, batches: Iterable[T], count: int) -> Iterable[T]:
        return self._profiling.some_of(batches, count)

    def begin_epoch(self, epoch: int) -> bool:
        self._profiling.leave_pause()
        return super().begin_epoch(epoch)

    def finish(self, collective: bool) -> None:
        self._profiling.leave_pause(ends=False)
        self._profiling.write()


PIECES = 16


class Readiness:
    """Finds when each gradient is ready, in steps that are not timed themselves."""

    def __init__(self, parameters: Sequence[Tensor], now: Callable[[], float]) -> None:
        self._parameters, self._now = parameters, now
        self._hooks: list[RemovableHandle] = []
        self._times: dict[Tensor, float] = {}
        self._began = 0.0
        self.pieces: list[tuple[float, float]] = [(1.0, 1.0)]

    def begin(self) -> None:
        """Begin to watch a step, whose data have been read."""
        self._times, self._began = {}, self._now()
        if not self._hooks:
            leaves = (p for p in self._parameters if p.requires_grad and p.is_leaf)
            self._hooks = [p.register_post_accumulate_grad_hook(self._note) for p in leaves]

    def _note(self, parameter: Tensor) -> None:
        self._times[parameter] = self._now()

    def end(self, ready: float) -> None:
        """Stop watching, because the whole gradient is ready."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        whole = ready - self._began
        if whole > 0 and self._times:
            shares = {p: (moment - self._began) / whole for p, moment in self._times.items()}
            found = [(p.numel() * p.element_size(), shares.get(p, 1.0)) for p in self._parameters]
            sizes, times = zip(*sorted(found, key=lambda one: one[1]), strict=True)
            # Pieces of equal size, each ready when its last byte is.
            through = np.cumsum(sizes) / sum(sizes)
            last = np.searchsorted(through, np.arange(1, PIECES + 1) / PIECES - 1e-9)
            self.pieces = [(1 / PIECES, min(1.0, max(0.0, times[i]))) for i in last]
