"""``WholeEngine``: trains as a single worker would; the others run the same script with it.

All workers see the same batches and make the same decisions, so the mathematics are those of one
worker: ``workers`` is 1. They divide the computing inside calls of models, and agree on when to
stop, save, or report that one of them has diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.core.errors import InputError
from phalanx.policies.sample_assignment import Lease, split_among_all
from phalanx.sync.arena.clock import Clock
from phalanx.sync.arena.team import everyone
from phalanx.sync.reduce.worker_collective import WorkerCollective
from phalanx.sync.state.optimizer_state import State
from phalanx.sync.state.windows import broadcast
from phalanx.sync.strategy import Timing
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.active_phase import ActivePhase
from phalanx.train.control.control import Control
from phalanx.train.control.directives import CommandPoller, Directive, Kind, say_refused
from phalanx.train.control.rendezvous import WHOLE
from phalanx.train.engine.emulation import SpeedEmulation, emulation_of
from phalanx.train.engine.engine import ArenaEngine, Script
from phalanx.train.engine.exchange import Exchange
from phalanx.train.engine.model_state import Captured
from phalanx.train.engine.sample_leases import EngineListener, least_samples
from phalanx.train.proof.checks import CheckPlan
from phalanx.train.samples.shared_leases import SharedLeases
from phalanx.train.whole.calls import SharedCalls, share_calls
from phalanx.train.whole.row_plan import rows_in


class _WholeControl(Control):
    """The control of workers that see whole batches; it refuses to switch the strategy."""

    shares: list[float]
    """The shares of a batch in the current segment."""

    def after_segment(self, ticket: int, position: int) -> tuple[int, Directive | None]:
        position, directive = super().after_segment(ticket, position)
        self.shares = list(self.watch.shares)
        if directive is not None and directive.kind is Kind.SWITCH:  # the training goes on
            if self._first:
                say_refused(InputError("it is in view whole", "Start it with --view parts."))
            directive = None
        return position, directive


class WholeEngine(ArenaEngine):
    directives: _WholeControl
    _calls: SharedCalls

    def __init__(self, script: Script, source: CommandPoller, listener: EngineListener) -> None:
        environment, spec = script.environment, script.spec
        models, optimizers = script.models, script.optimizers
        arena, clock, chosen = environment.arena, environment.clock, environment.settings
        assert arena is not None
        self._use(arena, listener)
        self.phase = spec.phases[0].label
        super().__init__(models, optimizers, clock, None, source)
        self.copy, self.copies = arena.rank, arena.workers
        self._models = models
        self.align()
        claims = SharedLeases(arena, least_samples(models))
        self.directives = _WholeControl(
            arena, optimizers, claims, source, self._tell_shares, self.rest,
            balance=chosen.balance == "auto",
        )  # fmt: skip
        self.active = ActivePhase(
            spec.phases[0], everyone(arena), self.directives.rendezvous, strategies=[]
        )
        arena.in_step = True
        self.directives.enter(self.active, spec, regroup=False)
        self.collective = WorkerCollective(arena, clock, self.directives.rendezvous.someone_left)
        self._plan, self._steps = CheckPlan(chosen.check, chosen.seed), 0
        self.directives.shares = list(self.directives.use_shares())
        emulation = emulation_of(chosen, arena.rank, arena)
        self.exchange = WholeExchange(self, optimizers, clock, emulation)

    def shared_calls(self, say_once: Callable[[str], None], saved: State) -> SharedCalls:
        """Make this worker's ``SharedCalls``, which continue from ``saved`` in a resumed run."""
        calls = self._calls = SharedCalls(self.collective, lambda: self.directives.shares, say_once)
        calls.alone_left = self._plan.length(0)
        if "whole.left" in saved:
            self._steps = int(saved["whole.steps"])
            calls.alone_left = int(saved["whole.left"])
            stream = saved["whole.stream"]
            calls.own_stream = stream if stream.numel() else None
        return calls

    def leave_shared_memory(self) -> None:
        share_calls(None)
        self.collective.is_left = True

    def rows_since_step(self) -> int:
        """Return the rows of the script's batch that this worker computed, and reset the count."""
        rows = self._calls.computed
        self._calls.trained = self._calls.computed = 0
        return rows

    def align(self) -> None:
        """Give every worker the weights and buffers of the first one. Collective."""
        values = [v for m in self._models for v in (*m.parameters(), *m.buffers())]
        # Through ``data``, so that an existing graph of these values stays as it is.
        broadcast(self._arena, list({id(v): v.data for v in values}.values()))

    # -- steps -------------------------------------------------------------------------------

    def capture(self) -> Captured:
        self.meet(intents.SAVE)
        captured = super().capture()
        return Captured(captured.shared if self.copy == 0 else {}, self._private())

    def _private(self) -> State:
        calls = self._calls
        stream = torch.empty(0, dtype=torch.uint8) if calls.own_stream is None else calls.own_stream
        counts = {"whole.left": calls.alone_left, "whole.steps": self._steps}
        return {n: torch.tensor(v) for n, v in counts.items()} | {"whole.stream": stream.clone()}

    def stepped(self) -> None:
        self._steps += 1
        left = max(0, self._calls.alone_left - 1)
        self._calls.alone_left = self._plan.length(self._steps) or left

    # -- the end -----------------------------------------------------------------------------

    def finish(self, collective: bool) -> None:
        if collective:
            self.meet(intents.FINISH)
            self._arena.rewind()
        else:
            self.directives.rendezvous.leave()


class WholeExchange(Exchange):
    """Each worker's own optimizer steps, with gradients that are the same on all of them."""

    def __init__(
        self,
        engine: WholeEngine,
        optimizers: Sequence[torch.optim.Optimizer],
        clock: Clock,
        emulation: SpeedEmulation | None,
    ) -> None:
        super().__init__(optimizers, clock, emulation)
        self._engine = engine

    def received(self, lease: Lease, batch: Any) -> int:
        engine, samples = self._engine, rows_in(batch) or lease.samples
        ends = [0, *split_among_all(samples, engine.directives.shares)]
        return ends[engine.copy + 1] - ends[engine.copy]

    def worked(self, samples: int, seconds: float) -> None:
        spent = self._engine.collective.spent
        waited = min(spent.waited, seconds)
        seconds -= waited
        if self._emulation is not None:
            seconds = self._emulation.work(samples, seconds)
        control = self._engine.directives
        control.measured(samples, seconds)
        control.rendezvous.figures[WHOLE] += waited

    def step(
        self, index: int, scale: float, weight: float, clip: float | None, *,
        agreed: bool = False, clipped: bool = False, judge: bool = False,
    ) -> Timing:  # fmt: skip
        waited = self._meet(index)
        timing = super().step(index, scale, weight, clip, agreed=agreed, judge=judge)
        return self._told(timing, waited)

    def note(self) -> Timing:
        return self._told(Timing(), self._meet(0))

    def _meet(self, index: int) -> float:
        """Wait until all workers are about to step with this optimizer; return the seconds."""
        asked, control = self._clock.now(), self._engine.directives
        control.announce(index, self._engine.active, 0)
        control.rendezvous.wait()
        return self._clock.now() - asked

    def _told(self, timing: Timing, waited: float) -> Timing:
        spent = self._engine.collective.spent
        timing.wait += waited + spent.waited
        timing.before = spent.waited
        timing.bytes_sent += spent.sent
        spent.waited, spent.sent = 0.0, 0
        self._engine.stepped()
        return timing
