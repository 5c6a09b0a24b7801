"""Takes steps: gradients are exchanged with the workers that step together, then applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.policies.sample_assignment import Lease
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.clock import Clock
from phalanx.sync.state.model_buffers import SharedBuffers
from phalanx.sync.strategies.single import Single, SingleOnGpu
from phalanx.sync.strategy import Timing
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.active_phase import PhaseSet
from phalanx.train.control.control import Control
from phalanx.train.control.rendezvous import WHOLE
from phalanx.train.engine.emulation import SpeedEmulation
from phalanx.train.engine.sample_leases import SharedSampleLeases
from phalanx.train.engine.script_optimizers import WrittenWeights


class Exchange:
    """The exchange of a worker alone, whose optimizers simply step."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        clock: Clock,
        emulation: SpeedEmulation | None = None,
    ) -> None:
        self.alone: list[Any] = [Single(o, clock) for o in optimizers]
        """Who updates, for each optimizer."""
        self._clock, self._emulation = clock, emulation
        self._on_gpu: SingleOnGpu | None = None

    def skip_on_device(self, optimizer: torch.optim.Optimizer, say: Callable[[str], None]) -> None:
        """Let the GPU skip steps of ``optimizer`` that are not finite; the host learns later."""
        self._on_gpu = SingleOnGpu(optimizer, self._clock, say)

    def received(self, lease: Lease, batch: Any) -> int:
        """Receive ``batch``, which is about to go through the model; return how many of its samples
        this worker computes."""
        return lease.samples

    def worked(self, samples: int, seconds: float) -> None:
        """Note that the gradient of ``samples`` took ``seconds`` to read and compute."""
        if self._emulation is not None:
            self._emulation.work(samples, seconds)

    def begin_batch(self, scales: Sequence[float]) -> None:
        """Begin a batch; the exchange multiplies the gradients of each optimizer by its scale."""

    def step(
        self, index: int, scale: float, weight: float, clip: float | None, *,
        agreed: bool = False, clipped: bool = False, judge: bool = False,
    ) -> Timing:  # fmt: skip
        """Take a step of optimizer ``index``; ``agreed``: each ``.grad`` is the sum of all workers
        already; ``clipped``: each worker has its slices of the clipped sum; ``judge``: the caller
        must know at once whether the step was refused."""
        alone = self.alone[index] if judge or self._on_gpu is None else self._on_gpu
        return alone.exchange(scale, clip)

    def note(self) -> Timing:
        """Note that the script has taken a step itself."""
        return Timing()

    def settle(self) -> list[Timing]:
        """Return the timings of the steps that were not judged yet."""
        return [] if self._on_gpu is None else self._on_gpu.settle()

    def share_gradients(self, index: int, scale: float, weight: float) -> None:
        """Give every worker that steps together the agreed gradient. Collective."""

    def clip_gradients(self, index: int, scale: float, weight: float, clip: float) -> float | None:
        """Clip the agreed gradient where it is summed, and return its norm; ``None`` if the
        strategy cannot. Collective."""
        return None

    def end_round(self) -> list[Timing]:
        """End a round of training apart: agree on each optimizer's parameters. Collective."""
        return []


class SharedExchange(Exchange):
    """The exchange of several workers, by the strategies of the current phase."""

    def __init__(
        self,
        arena: Arena,
        clock: Clock,
        emulation: SpeedEmulation | None,
        control: Control,
        phases: PhaseSet,
        leases: SharedSampleLeases,
        buffers: SharedBuffers,
        written: WrittenWeights,
    ) -> None:
        self._arena, self._clock, self._emulation = arena, clock, emulation
        self._on_gpu = None
        self._control, self._phases = control, phases
        self._figures = control.rendezvous.figures
        self._leases, self._buffers, self._written = leases, buffers, written
        self._exchanged = 0.0
        """Seconds of sharing or clipping gradients since the last step, which are no computing."""

    def received(self, lease: Lease, batch: Any) -> int:
        self._buffers.samples += lease.samples
        self._leases.had = lease.total or self._leases.had + lease.samples
        self._leases.batch_end = lease.batch_end
        active = self._phases.current
        if not active.lockstep:
            for strategy in active.strategies:
                strategy.emphasise(lease.emphasis)
                strategy.covers(self._leases.had)
        return lease.samples

    def worked(self, samples: int, seconds: float) -> None:
        seconds = max(0.0, seconds - self._exchanged)
        if self._emulation is not None:
            lockstep = self._phases.current.lockstep
            seconds = self._emulation.work(samples, seconds, lockstep=lockstep)
        self._control.measured(samples, seconds)
        self._figures[WHOLE] += self._exchanged

    def begin_batch(self, scales: Sequence[float]) -> None:
        for replica, scale in zip(self._phases.replicas, scales, strict=True):
            replica.scale.value = scale

    def step(
        self, index: int, scale: float, weight: float, clip: float | None, *,
        agreed: bool = False, clipped: bool = False, judge: bool = False,
    ) -> Timing:  # fmt: skip
        active, replica = self._phases.current, self._phases.replicas[index]
        strategy = active.strategies[index]
        self._written.follow(index)
        replica.scale.value = scale
        began = self._arena.pace.now()
        if not active.together:
            timing = strategy.exchange(weight, clip)
        elif clipped or (agreed and clip is None and strategy.steps_agreed):
            timing = self._step_agreed(index, clipped)
        else:
            self._control.announce(index, active, self._leases.batch_end)
            timing = strategy.exchange(weight, clip)
        self._figures[WHOLE] += self._arena.pace.now() - began
        timing.before = self._exchanged
        timing.wait += self._exchanged
        self._exchanged = 0.0
        self._leases.stepped = self._leases.had
        if not active.lockstep and self._buffers.any:
            self._buffers.publish()
        self._written.note(index)
        # Schedulers warn if the optimizer's own ``step`` was not called.
        setattr(replica.optimizer, "_opt_called", True)  # noqa: B010
        return timing

    def _step_agreed(self, index: int, clipped: bool) -> Timing:
        active = self._phases.current
        strategy = active.strategies[index]
        self._phases.replicas[index].scale.value = 1.0
        asked = self._clock.now()
        self._control.announce(intents.AGREED + index, active, self._leases.batch_end)
        active.rendezvous.wait()
        met = self._clock.now()
        timing = strategy.step_clipped() if clipped else strategy.step_agreed()
        timing.wait += met - asked
        return timing

    def share_gradients(self, index: int, scale: float, weight: float) -> None:
        active, began = self._phases.current, self._clock.now()
        self._phases.replicas[index].scale.value = scale
        self._control.announce(intents.READ - index, active, self._leases.batch_end)
        active.rendezvous.wait()
        active.strategies[index].share_gradients(weight)
        self._exchanged += self._clock.now() - began

    def clip_gradients(self, index: int, scale: float, weight: float, clip: float) -> float | None:
        active = self._phases.current
        if not (active.together and active.strategies[index].steps_agreed):
            return None
        began = self._clock.now()
        self._phases.replicas[index].scale.value = scale
        self._control.announce(intents.CLIP - index, active, self._leases.batch_end)
        norm = active.strategies[index].clip_gradients(weight, clip)
        self._exchanged += self._clock.now() - began
        return norm

    def end_round(self) -> list[Timing]:
        found = []
        for index, strategy in enumerate(self._phases.current.strategies):
            self._written.follow(index)
            self._control.rendezvous.announce(intents.ROUND)
            began = self._arena.pace.now()
            found.append(strategy.agree())
            self._figures[WHOLE] += self._arena.pace.now() - began
        return found
