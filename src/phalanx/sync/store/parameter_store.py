"""What strategies ask of a store of parameters: memory on one host, servers between several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.spec.strategies import known_strategies
from phalanx.data.ledger import Applied
from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.replica import Masks
from phalanx.sync.state.shard_optimizer import ELEMENTWISE
from phalanx.sync.state.shared_state import State
from phalanx.sync.store.push_buffers import PushBuffers
from phalanx.sync.store.shared_store import SharedStore
from phalanx.sync.strategies.strategy import StrategyContext, Timing


class ParameterStore(Protocol):
    """One worker's access to the store, wherever that is."""

    def make_buffers(self) -> PushBuffers:
        """Memory for gradients to push."""

    def encode(self, buffers: PushBuffers) -> int:
        """What is pushed next becomes what the store sees; returns its bytes, if none are sent
        for real."""

    def begin(self) -> None:
        """From here on the store has the newest parameters. Collective."""

    def settle(self) -> None:
        """Nothing is pushed any more: the shared state becomes what the store has. Collective."""

    def fetch_slots(self) -> None:
        """The optimizer's state in the shared state becomes what the store has now."""

    def push_buffers(
        self,
        buffers: PushBuffers,
        used: Masks,
        rate_factor: float,
        timing: Timing,
        pull: Sequence[Tensor] | None = None,
    ) -> None:
        """Give what was encoded; ``pull``, unless it is ``None``, takes the new parameters."""

    def fence(self, rank: int) -> Applied | None:
        """A worker is lost: how far its pushes have come, and will ever."""

    def push_for(self, reducer: Reducer) -> None:
        """A team's sums are what will be pushed."""

    def push_reduced(
        self, reducer: Reducer, used: Masks, rate_factor: float, timing: Timing
    ) -> None:
        """Give what a team has summed. Every member calls it."""

    def pull(self, into: Sequence[Tensor]) -> None:
        """Copy the newest parameters."""

    def pull_newer(self, into: Sequence[Tensor], taken: list[int]) -> list[int]:
        """Pull unless ``into`` is of the versions ``taken``; returns those it is of now."""

    def pull_reduced(self, reducer: Reducer, into: Sequence[Tensor]) -> None:
        """Copy the newest parameters, which a team has just updated. Every member calls it."""

    def export_private(self) -> State:
        """What only this worker knows of its pushes."""

    def import_private(self, state: State) -> None: ...


def make_store(context: StrategyContext, servers: int | None = None) -> ParameterStore:
    refuse_whole(context)
    if context.arena.hosts is None:
        return SharedStore(context)
    from phalanx.sync.store.remote.remote_store import RemoteStore

    return RemoteStore(context, servers)


def refuse_whole(context: StrategyContext) -> None:
    """An optimizer that is not element-wise cannot run on one shard at a time."""
    if not context.shared.elementwise:
        kinds = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        takes_any = [n for n, t in known_strategies().items() if t.any_optimizer and n != "single"]
        raise InputError(
            f"the optimizer {type(context.replica.optimizer).__name__} cannot run in the store",
            f"Use one of {kinds}, or a strategy that takes any: {', '.join(takes_any)}.",
        )
