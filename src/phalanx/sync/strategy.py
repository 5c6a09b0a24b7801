"""The interface of strategies, which decide how workers agree on the next parameters.

A strategy receives everything that it uses: the replica (this worker's parameters and gradients),
the shared state, the arena to wait in, its team, the encoding of what it sends, the clock. It
never opens a socket or reads the time by itself, so the same code runs between processes, between
threads, and in scripted time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from phalanx.policies.sample_assignment import Applied
from phalanx.sync.arena.arena import Arena
from phalanx.sync.arena.clock import Clock, Toll
from phalanx.sync.arena.team import Team
from phalanx.sync.codec.encoding import Encoding
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.shared_state import SharedState, State

if TYPE_CHECKING:
    from phalanx.sync.arena.admission_gate import AdmissionGate


@dataclass
class Timing:
    """The seconds that the parts of one exchange took, in the order in which they happen."""

    send: float = 0.0
    wait: float = 0.0
    reduce: float = 0.0
    update: float = 0.0
    settle: float = 0.0
    staleness: int = 0
    bytes_sent: int = 0
    refused: tuple[int, ...] | None = None
    """Workers whose gradients were not finite (empty if only their sum was not), so that the step
    was not taken; ``None`` if it was taken. It is the same for all that step together."""
    before: float = 0.0
    """The part of ``wait`` before this worker's gradient was ready."""
    hidden: float = 0.0
    """Seconds in which gradients were exchanged with other machines before this worker's were
    complete."""
    norm: float | None = None
    """The norm of the gradient before it was clipped; ``None`` if the exchange did not clip it."""
    judged: bool = True
    """Whether ``refused`` is known, for the oldest step not judged yet: a GPU reports late."""


class Gates:
    """The gate of a stage, made by the first of its optimizers and shared by all of them."""

    def __init__(self) -> None:
        self._gate: AdmissionGate | None = None

    def shared(self, make: Callable[[], AdmissionGate]) -> AdmissionGate:
        if self._gate is None:
            self._gate = make()
        return self._gate


@dataclass(frozen=True)
class StrategyContext:
    """Everything that a strategy receives to work with."""

    replica: Replica
    shared: SharedState
    arena: Arena
    clock: Clock
    team: Team
    rate_divisor: float = 1.0
    encoding: Encoding = field(default_factory=Encoding)
    tag: str = ""
    """A text that tells apart the memory of several optimizers and phases."""
    gates: Gates = field(default_factory=Gates)
    """Shared by all optimizers of a stage."""
    gone: Callable[[], bool] | None = None
    """Returns whether waiting is in vain, because a worker has left for good. Takes no lock."""
    toll: Toll = field(default_factory=Toll)
    """Charges the virtual time that exchanges take."""


class Strategy(Protocol):
    """``Strategy(context, **options)``, registered in ``phalanx.core.spec.strategies``.

    Methods that not every strategy needs do nothing by default.
    """

    every: int = 0
    """Batches of a round, for strategies whose workers train apart between rounds; else 0."""

    def begin(self) -> None:
        """Start training under this strategy, from the newest parameters. Collective."""

    def bind(self) -> None:
        """Make the model's parameters those that this strategy trains."""

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        """Give this worker's gradient, times the replica's scale, and take the new parameters.

        The agreed gradient is the sum over those who take part, divided by the sum of their
        weights; ``clip`` limits its norm. Parameters have no gradient afterwards.
        """

    def arrive(self) -> None:
        """Announce that this worker takes a batch: from now on others wait for it."""

    def emphasise(self, factor: float) -> None:
        """Weigh this worker's batches, which are ``factor`` times as large as an equal share."""

    def share_gradients(self, weight: float) -> None:
        """Give every member of the team the agreed gradient, without a step. Teams only."""

    @property
    def steps_agreed(self) -> bool:
        """Whether ``step_agreed``, ``clip_gradients`` and ``step_clipped`` can be used."""
        return False

    def step_agreed(self) -> Timing:
        """Update from the agreed gradient, which all members have, after they have met."""
        return Timing()

    def clip_gradients(self, weight: float, clip: float) -> float | None:
        """Sum the gradients, limit the norm of the sum, and return the norm from before. Every
        member keeps its slices of the sum, and its own gradient. Collective."""
        return 0.0

    def step_clipped(self) -> Timing:
        """Update from the sum of ``clip_gradients``, after all members have met."""
        return Timing()

    def covers(self, total: int) -> None:
        """Note that the next gradient covers the first ``total`` samples this worker had."""

    def fence(self, rank: int) -> Applied | None:
        """Refuse further gradients of a lost worker; return how many of its samples are applied.

        ``None`` if that cannot be known.
        """
        return None

    def agree(self) -> Timing:
        """Local strategies: bring the workers' parameters together. Collective."""
        return Timing()

    def rest(self) -> None:
        """Take no part for a while, so that the others do not wait for this worker."""

    def lose(self, rank: int) -> None:
        """Note that a worker is lost: nobody waits for it. Called between steps or in a wait."""

    def refresh(self) -> None:
        """Take the newest parameters, without giving a gradient."""

    def snapshot(self, flats: list[Tensor]) -> None:
        """Copy the newest parameters into ``flats``, whatever the others do meanwhile."""

    def drain(self) -> None:
        """Wait until all that this worker has sent is applied. Collective."""

    def export_state(self) -> State:
        """Return parameters, optimizer slots and counts. Only after :meth:`drain`."""

    def import_state(self, state: State) -> None:
        """Continue from what another strategy exported."""

    def write_optimizer(self) -> None:
        """Give the script's own optimizer the state as it is now."""

    def export_private(self) -> State:
        """Return what only this worker knows and the next step depends on."""
        return {}

    def import_private(self, state: State) -> None:
        """Continue from what this worker itself exported, under the same strategy."""
