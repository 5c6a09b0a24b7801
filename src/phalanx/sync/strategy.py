"""What a strategy is: how workers agree on the next parameters.

A strategy is given everything it touches: the replica (this worker's parameters and gradients),
the shared state, the arena to wait in, the clock. It never opens a socket or reads the time by
itself, so the same code runs between processes, between threads, and in scripted time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from phalanx.sync.clock import Clock
from phalanx.sync.replica import Replica
from phalanx.sync.shared_state import SharedState, State
from phalanx.sync.transport.arena import Arena


@dataclass
class Timing:
    """How long the parts of one exchange took, in the order in which they happen (seconds)."""

    send: float = 0.0
    wait: float = 0.0
    reduce: float = 0.0
    update: float = 0.0
    settle: float = 0.0
    staleness: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True)
class StrategyContext:
    """What a strategy is given to work with. ``shared`` and ``arena`` need two workers or more."""

    replica: Replica
    shared: SharedState
    arena: Arena
    clock: Clock
    rate_divisor: float = 1.0
    meet: Callable[[], object] | None = None
    """The barrier that begins a collective step; checks that all workers mean the same one."""


class Strategy(Protocol):
    """``Strategy(context, **options)``, registered in ``phalanx.core.spec``."""

    def begin(self) -> None:
        """Start training under this strategy, from the newest parameters. Collective."""

    def bind(self) -> None:
        """Make the model's parameters those that this strategy trains."""

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        """Give this worker's gradient, times ``weight`` already, and take the new parameters.

        The agreed gradient is the sum over those who take part, divided by the sum of their
        weights; ``clip`` limits its norm. Gradients are gone afterwards.
        """

    def offer(self, weight: float, clip: float | None = None) -> None:
        """Show the others this worker's gradient, without beginning a step. Lockstep only."""

    def follow(self) -> Timing:
        """Take part in the step that everyone has met for, with what was offered."""

    def refresh(self) -> None:
        """Take the newest parameters, without giving anything."""

    def drain(self) -> None:
        """Return when nothing of this worker's is under way any more. Collective."""

    def export_state(self) -> State:
        """Parameters, optimizer slots and counts. Only after :meth:`drain`."""

    def import_state(self, state: State) -> None:
        """Go on from what another strategy exported."""
