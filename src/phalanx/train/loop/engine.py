"""What a worker trains with: its strategies, and what it shares with the others, if anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phalanx.core.spec import Phase, Spec
from phalanx.data.ledger import Lease, Segment, lockstep
from phalanx.sync.arena.clock import Clock
from phalanx.sync.arena.remote.coordinator_messages import Lost
from phalanx.sync.connect.channel import Channel
from phalanx.sync.policy.balance import Change
from phalanx.sync.policy.samples_in_hand import Settled
from phalanx.sync.state.optimizer_state import State
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.sole_state import export_alone, import_alone
from phalanx.sync.strategies.single import Single
from phalanx.sync.strategies.strategy import Timing
from phalanx.train.checkpoint.buffer_state import load_buffers, named_buffers
from phalanx.train.checkpoint.whole_state import Captured, part_of
from phalanx.train.control.command_cells import Command, Kind
from phalanx.train.loop.emulation import SpeedEmulation

NEVER = 2**62


@dataclass(frozen=True)
class Snapshot:
    """Weights and buffers of one moment, in memory of this worker's own."""

    flats: list[list[Tensor]]
    averages: Tensor
    firsts: list[Tensor]


class Engine:
    """A worker alone: the user's optimizer, nothing shared, nobody to wait for.

    ``SharedEngine`` is the same for several workers; the rest of the room knows only this.
    """

    rank = 0
    workers = 1
    lockstep = True
    resting = False
    """Whether this worker takes no part for a while, so that nobody waits for it."""
    background = True
    """Whether other threads may read ahead for this worker."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        clock: Clock,
        emulation: SpeedEmulation | None = None,
    ) -> None:
        self._models, self._users = list(models), list(optimizers)
        self._clock, self._emulation = clock, emulation
        self._alone = [Single(o, clock) for o in self._users]
        self._stop = self.region("stop", 2, torch.int64).numpy()  # [last epoch, newest begun]
        self._stop[0] = NEVER
        self._command: Command | None = None
        self.watcher: Callable[[], Command | None] | None = None
        """Asked at every step, on the first worker, whether there is a command to post."""
        self.on_shares: Callable[[Change], None] | None = None
        """Called, on the first worker, when other parts of a batch have been kept or refused."""
        self.on_lost: Callable[[Lost], None] | None = None
        """Told when a worker is gone and the others go on."""
        self.on_settled: Callable[[Settled], None] | None = None
        """Told, on one worker, what became of the samples that a lost one was given."""
        self.told_to_stop: Callable[[], bool] = lambda: False
        """Asked at every step, on each worker."""
        self.on_step: Callable[[int, Timing], None] = lambda index, timing: None
        """Told of every step, of which optimizer and what came of it, also where this worker had
        no samples for it; -1 where workers that train apart come together."""

    # -- memory and turns --------------------------------------------------------------------

    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Memory that all workers of this training see, zero at first. Collective."""
        return torch.zeros(count, dtype=dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return nullcontext()

    def meet(self, intent: int) -> None:
        """A barrier at which all workers have to mean the same."""

    def barrier(self) -> None:
        pass

    def gather(self, mine: bytes | None) -> list[bytes]:
        """What each worker gives, by rank, without those who give ``None``. Collective."""
        return [] if mine is None else [mine]

    def pause(self) -> None:
        """Give way for a moment inside a polling loop."""

    def rest(self) -> None:
        """This worker takes no part for a while; nobody is to wait for it."""

    def arrive(self) -> None:
        """This worker takes part again."""

    @property
    def lost(self) -> Collection[int]:
        """Workers that are gone, and without whom the others go on."""
        return ()

    # -- steps -------------------------------------------------------------------------------

    def worked(self, samples: int, seconds: float) -> None:
        """The gradient of ``samples`` took ``seconds`` of input and computing."""
        if self._emulation is not None:
            self._emulation.work(samples, seconds)

    @property
    def leads(self) -> bool:
        """Whether it speaks for those that step together."""
        return True

    @property
    def parties(self) -> int:
        """Workers whose gradients one step adds up."""
        return 1

    def exchange(
        self, index: int, scale: float, weight: float, clip: float | None, *, agreed: bool = False
    ) -> Timing:
        """A step; ``agreed`` if all that take part in it have the agreed gradient already."""
        self._watch()
        timing = self._alone[index].exchange(scale, clip)
        self.on_step(index, timing)
        return timing

    goes_ahead = False
    """Whether gradients may be on their way before the step: then ``begin_batch`` is called."""

    def begin_batch(self, scales: Sequence[float]) -> None:
        """What the gradients of each optimizer are multiplied by when they are exchanged."""

    def share_gradients(self, index: int, scale: float, weight: float) -> None:
        """Every worker that steps together gets the agreed gradient. Collective."""

    @property
    def outgrown(self) -> bool:
        """Whether the optimizers train parameters that they did not before."""
        return False

    def follow_parameters(self) -> bool:
        """Train what the optimizers train now: parameters may have been unfrozen or added.

        Collective where there are any; returns whether there were.
        """
        return False

    def write_optimizer(self, index: int) -> None:
        """Give the script's optimizer its state as it is now."""

    def read_optimizer(self, index: int) -> None:
        """The script has loaded another state into its optimizer: go on from that. Collective."""

    def end_pass(self) -> None:
        """A pass over the training data is over, for all workers that step together."""

    def _watch(self) -> None:
        if self.told_to_stop():
            self._command = Command(Kind.STOP)
        if self._command is None and self.watcher is not None:
            self._command = self.watcher()

    def end_round(self) -> Timing | None:
        """A round of training apart is over: agree on the parameters. Collective."""
        return None

    def received(self, lease: Lease) -> None:
        """These samples are about to go through the model."""

    def settle(self) -> None:
        """Workers that train apart come together, to be evaluated as one. Collective."""

    # -- the way through the data ------------------------------------------------------------

    def leases(
        self, ticket: int, segment: Segment, batch: int, *, fixed: bool = False
    ) -> Iterator[Lease]:
        """What this worker reads of ``segment``: its shares, or what it can claim.

        ``fixed``: always the same columns of each global batch.
        """
        return lockstep(segment, batch, 0, [1.0])

    @property
    def cut(self) -> bool:
        """In lockstep: the stretch under way ends with the batch in hand, or with its round."""
        return self._command is not None

    @property
    def apart(self) -> bool:
        """Workers train apart, in rounds."""
        return False

    def after_stretch(self, ticket: int, lockstep_position: int) -> tuple[int, Command | None]:
        """How far the data have been used, and the command to take there, if any."""
        command, self._command = self._command, None
        return lockstep_position, command

    def complete(self, ticket: int) -> bool:
        """After all leases of a stretch, whether it is over: nobody has any of it in hand.

        If not, there are samples of a worker that was lost meanwhile: ask for leases again.
        """
        return True

    def let_go(self) -> None:
        """The script has left the stretch before its end."""

    def waits(self, rank: int) -> bool:
        """Whether that worker waits at the end of a stretch until nobody has any of it in hand."""
        return False

    def enter(self, phase: Phase, spec: Spec, *, regroup: bool = False) -> float | None:
        """Be in ``phase``; when that is a switch, returns when the last worker came to it.

        By then its last update is applied, and what it evaluated before the switch is done.
        """
        return None

    @property
    def phase(self) -> str:
        """What this worker trains under now, in words."""
        return "single"

    # -- reading the model -------------------------------------------------------------------

    def share_buffers(self) -> None:
        """Every worker takes the average of the workers' buffers. Collective."""

    def take_snapshot(self) -> Snapshot | None:
        """Today's weights, whatever the others do to them; ``None`` where nobody can."""
        return None

    @contextmanager
    def showing(self, snapshot: Snapshot | None) -> Iterator[None]:
        """Inside, the models hold ``snapshot``."""
        yield

    # -- checkpoints -------------------------------------------------------------------------

    @property
    def replicas(self) -> list[Replica]:
        """How the parameters of each optimizer lie in a checkpoint."""
        return [Replica(o, 1) for o in self._users]

    def capture(self) -> Captured:
        """The state now, in memory of its own. Collective."""
        shared: State = {}
        for i, replica in enumerate(self.replicas):
            shared |= {f"o{i}.{n}": value for n, value in export_alone(replica).items()}
        return Captured(shared | named_buffers(self._models), {})

    def restore(self, shared: State, private: State | None) -> None:
        """Go on from what was captured; ``private`` only if it is this worker's own. Collective."""
        for i, replica in enumerate(self.replicas):
            import_alone(replica, part_of(shared, f"o{i}."))
        load_buffers(self._models, shared)

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
        """Between the first worker and those who cannot write where it does. Collective."""
        return {}

    @property
    def near_first(self) -> bool:
        """Whether this worker writes where the first one does: they are on one machine."""
        return True

    def finish(self, collective: bool) -> None:
        """Leave the final parameters, buffers and optimizer state in ordinary tensors."""
