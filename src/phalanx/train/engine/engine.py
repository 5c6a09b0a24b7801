"""The base of engines: what a worker trains with, and what it shares with other workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from phalanx.core.spec import Phase, Spec
from phalanx.policies.balance import ShareChange
from phalanx.sync.arena.arena import Arena, Locks
from phalanx.sync.arena.clock import Clock
from phalanx.sync.state.windows import Gathering
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.control import Control
from phalanx.train.control.directives import CommandPoller, DirectiveTaker
from phalanx.train.engine.emulation import SpeedEmulation
from phalanx.train.engine.exchange import Exchange
from phalanx.train.engine.model_state import Captured, ModelState
from phalanx.train.engine.sample_leases import EngineListener, SampleLeases
from phalanx.train.engine.script_optimizers import ScriptOptimizers
from phalanx.train.start.environment import Environment

if TYPE_CHECKING:
    from phalanx.sync.connect.channel import Channel


NEVER = 2**62
T = TypeVar("T")


@dataclass(frozen=True)
class Script:
    """The script's models and optimizers, on this worker's device."""

    environment: Environment
    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    spec: Spec
    precision: str
    rounding: ExitStack
    notes: list[str]
    buffers: str
    loss: str


class Engine:
    """Trains a single worker with the user's optimizer; nothing is shared. The loop knows only this
    class; ``SharedEngine`` is that for several workers. ``leases`` gives out samples, ``exchange``
    takes steps, ``directives`` says what to do between two batches, ``optimizers`` watches the
    script's optimizers, ``model`` reads and restores the model's state."""

    rank = 0
    workers = 1
    copies, copy = 1, 0
    """How many workers run the script on the same whole batches, and this worker's index."""
    lockstep = True
    background = True
    """Whether other threads may read ahead for this worker."""
    parties = 1
    """The number of workers whose gradients one step sums."""
    apart = False
    """Whether workers train apart, in rounds."""
    timed = False
    """Whether a step waits for the device, so that computing can be told from updating."""
    goes_ahead = False
    """Whether gradients may be sent before the step; then ``exchange.begin_batch`` is called."""
    leads = True
    """Whether this worker reports for all workers that step together."""
    holds_optimizers = True
    """Whether this worker can give the script's optimizers their state at any time."""
    near_first = True
    """Whether this worker writes where the first one does: they are on one machine."""
    phase = "single"
    """The current phase of the strategy, in words."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        clock: Clock,
        emulation: SpeedEmulation | None = None,
        source: CommandPoller | None = None,
    ) -> None:
        self.model, self.leases = ModelState(models, optimizers), SampleLeases()
        self.exchange = Exchange(optimizers, clock, emulation)
        self.optimizers = ScriptOptimizers()
        self.directives = DirectiveTaker(source)
        self._make_stop()

    def _make_stop(self) -> None:
        self._stop = self.region("stop", 2, torch.int64).numpy()  # [last epoch, newest begun]
        self._stop[0] = NEVER

    # -- memory and turns --------------------------------------------------------------------

    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Return memory that all workers of this training share, zero at first. Collective."""
        return torch.zeros(count, dtype=dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return nullcontext()

    def meet(self, intent: int) -> None:
        """Wait for all workers, which must all have this intent."""

    def barrier(self) -> None:
        pass

    def first_decides(self, mine: bool) -> bool:
        """Return what the first worker decides, for all. Collective, between steps."""
        return mine

    def gather(self, mine: bytes | None) -> list[bytes]:
        """Return what each worker gives, by rank, without those who give ``None``. Collective."""
        return [] if mine is None else [mine]

    def pause(self) -> None:
        """Let others run for a moment, inside a polling loop."""

    @property
    def resting(self) -> bool:
        """Whether this worker takes no part for a while, so that no other waits for it."""
        return False

    def rest(self) -> None:
        """Take no part for a while, so that no other worker waits for this one."""

    def arrive(self) -> None:
        """Take part again."""

    @property
    def lost(self) -> Collection[int]:
        """The lost workers, without which the others go on."""
        return ()

    # -- steps -------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Apply all updates that are under way, so that all workers see the same. Collective."""

    # -- the way through the data ------------------------------------------------------------

    def some_of(self, batches: Iterable[T], count: int) -> Iterable[T]:
        """Return the batches that an evaluation reads: all, except when profiling."""
        return batches

    def end_pass(self, *, adopted: bool = False) -> None:
        """End a pass over the training data, for all workers that step together. ``adopted``: until
        ``begin_pass``, the script has to do the same on all workers."""

    def leave_pass(self, reached: int) -> None:
        """End a pass of an adopted script that has left its loop after ``reached`` samples."""

    def begin_pass(self, *, adopted: bool) -> None:
        """Wait, in an adopted script, until all workers have come to this pass."""

    def enter(self, phase: Phase, spec: Spec, *, regroup: bool = False) -> float | None:
        """Enter ``phase``; if that is a switch, return the time when the last worker arrived."""
        return None

    def capture(self) -> Captured:
        """Copy the present state into memory of its own. Collective."""
        return self.model.capture()

    def note_weights(self) -> None:
        """Note that Phalanx, not the script, has changed the weights."""

    # -- a child that goes on alone ----------------------------------------------------------

    def leave_shared_memory(self) -> None:
        """Give a process forked from this worker memory of its own for what it trains."""

    # -- the end -----------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> bool:
        """Whether ``epoch`` is to be trained; the answer is the same for all workers."""
        if self._stop[0] < epoch:
            return False
        self._stop[1] = max(self._stop[1], epoch)
        return True

    def request_stop(self, epoch: int) -> None:
        """Let training end after ``epoch``, or after the newest one that any worker has begun."""
        self._stop[0] = min(self._stop[0], max(self._stop[1], epoch))

    def leave(self) -> None:
        """End in the middle of the training, all together. Collective."""

    def channels_with_first(self) -> dict[int, Channel]:
        """Channels from the first worker to those without access to its disk. Collective."""
        return {}

    def finish(self, collective: bool) -> None:
        """Leave the final parameters, buffers and optimizer state in ordinary tensors."""


class ArenaEngine(Engine):
    """The base of the engines that share an arena; they differ in what their workers share."""

    directives: Control

    def _use(self, arena: Arena, listener: EngineListener) -> None:
        self._arena, self._listener = arena, listener
        self.background = not arena.scripted
        self.near_first = arena.hosts is None or 0 in arena.hosts.here
        self._gathering: Gathering | None = None

    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        return self._arena.region(name, count, dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return self._arena.lock(index)

    def meet(self, intent: int) -> None:
        self.directives.meet(intent)

    def barrier(self) -> None:
        self._arena.barrier()

    def first_decides(self, mine: bool) -> bool:
        self.rest()
        self.meet(intents.DECIDE)
        ((decided,),) = self.gather(bytes([mine]) if self._arena.rank == 0 else None)
        return bool(decided)

    def gather(self, mine: bytes | None) -> list[bytes]:
        if self._gathering is None:
            self._gathering = Gathering(self._arena)
        return self._gathering.gather(mine)

    def pause(self) -> None:
        self._arena.pause()

    def _tell_shares(self, change: ShareChange) -> None:
        if self._arena.rank == 0:
            self._listener.shares_changed(change)

    def begin_epoch(self, epoch: int) -> bool:
        with self.lock(Locks.STOP):
            return super().begin_epoch(epoch)

    def request_stop(self, epoch: int) -> None:
        with self.lock(Locks.STOP):
            super().request_stop(epoch)

    def leave(self) -> None:
        self.rest()
        self._arena.rewind()

    def channels_with_first(self) -> dict[int, Channel]:
        hosts = self._arena.hosts
        return {} if hosts is None else hosts.channels_with_first()
