"""What a worker trains with: its strategies, and what it shares with the others, if anything."""

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
    """A worker alone: the user's optimizer, nothing shared, no other worker to wait for.
    ``SharedEngine`` is the same for several workers; the loop knows only this. ``leases`` gives out
    samples, ``exchange`` steps, ``directives`` says what to do between two batches, ``optimizers``
    keeps those of the script true, ``model`` reads and restores the model's state."""

    rank = 0
    workers = 1
    copies, copy = 1, 0
    """Workers that run the script on the very same batches; which of them this one is."""
    lockstep = True
    background = True
    """Whether other threads may read ahead for this worker."""
    parties = 1
    """Workers whose gradients one step adds up."""
    apart = False
    """Whether workers train apart, in rounds."""
    timed = False
    """Whether a step waits for the device, so that computing can be told from updating."""
    goes_ahead = False
    """Whether gradients may be on their way before the step: then
    ``exchange.begin_batch`` is called."""
    leads = True
    """Whether this worker speaks for those that step together."""
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
        """Memory that all workers of this training see, zero at first. Collective."""
        return torch.zeros(count, dtype=dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return nullcontext()

    def meet(self, intent: int) -> None:
        """A barrier at which all workers have to intend the same."""

    def barrier(self) -> None:
        pass

    def first_decides(self, mine: bool) -> bool:
        """What the first worker decides, for all. Collective, between steps."""
        return mine

    def gather(self, mine: bytes | None) -> list[bytes]:
        """What each worker gives, by rank, without those who give ``None``. Collective."""
        return [] if mine is None else [mine]

    def pause(self) -> None:
        """Give way for a moment inside a polling loop."""

    @property
    def resting(self) -> bool:
        """Whether this worker takes no part for a while, so that no other waits for it."""
        return False

    def rest(self) -> None:
        """This worker takes no part for a while; no other is to wait for it."""

    def arrive(self) -> None:
        """This worker takes part again."""

    @property
    def lost(self) -> Collection[int]:
        """Workers that are gone, and without whom the others go on."""
        return ()

    # -- steps -------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Return when no worker has anything under way: all then see the same. Collective."""

    # -- the way through the data ------------------------------------------------------------

    def some_of(self, batches: Iterable[T], count: int) -> Iterable[T]:
        """The batches of an evaluation to evaluate, of ``count``: all, except when profiling."""
        return batches

    def end_pass(self, *, adopted: bool = False) -> None:
        """A pass over the training data is over, for all workers that step together. ``adopted``:
        what the script does until ``begin_pass``, it has to do alike on all."""

    def leave_pass(self, reached: int) -> None:
        """``end_pass`` of an adopted script that has left its loop after ``reached`` samples."""

    def begin_pass(self, *, adopted: bool) -> None:
        """Wait, in an adopted script, until all workers have come to this pass."""

    def enter(self, phase: Phase, spec: Spec, *, regroup: bool = False) -> float | None:
        """Be in ``phase``; when that is a switch, returns when the last worker came to it. By then
        its last update is applied, and what it evaluated before the switch is done."""
        return None

    def capture(self) -> Captured:
        """The state now, in memory of its own. Collective."""
        return self.model.capture()

    def note_weights(self) -> None:
        """The weights are as they should be: it was not the script that has changed them."""

    # -- a child that goes on alone ----------------------------------------------------------

    def leave_shared_memory(self) -> None:
        """Give a process forked from this worker memory of its own for what it trains."""

    # -- the end -----------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> bool:
        """Whether ``epoch`` is to be trained; all workers train the same ones."""
        if self._stop[0] < epoch:
            return False
        self._stop[1] = max(self._stop[1], epoch)
        return True

    def request_stop(self, epoch: int) -> None:
        """End after ``epoch``, or after the newest one that any worker has begun."""
        self._stop[0] = min(self._stop[0], max(self._stop[1], epoch))

    def leave(self) -> None:
        """End in the middle, all together. Collective."""

    def channels_with_first(self) -> dict[int, Channel]:
        """Channels from the first worker to those that cannot write where it does. Collective."""
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
