"""Bulk-synchronous training through the store, which takes a step when all workers have pushed.

Valiant, "A bridging model for parallel computation" (1990); the synchronous mode of parameter
servers. Unlike ``allreduce`` no worker has a slice of its own: the store sums what was pushed, in
the order of the ranks, and updates it, while others are still pushing. On one host, the worker that
completes a shard updates it; with several, each host pushes its workers' sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.sync.state.shared_state import State
from phalanx.sync.store.shared_round import SharedRound
from phalanx.sync.store.shared_store import refuse_whole
from phalanx.sync.strategies.team_strategy import TeamStrategy
from phalanx.sync.strategy import StrategyContext, Timing

if TYPE_CHECKING:
    from phalanx.sync.store.remote.remote_round import RemoteRound


class BulkSynchronous(TeamStrategy):
    def __init__(self, context: StrategyContext, servers: int | None = None) -> None:
        super().__init__(context)
        refuse_whole(context)
        self.offers = self._round = _round_of(context, servers)

    def begin(self) -> None:
        self._round.begin()
        super().begin()

    def follow(self) -> Timing:
        self._replica.drop_gradients()
        timing = self._round.take_part()
        self.refresh()
        return timing

    def drain(self) -> None:
        super().drain()
        self._round.settle()

    def write_optimizer(self) -> None:
        with self._round.holding_slots():
            super().write_optimizer()

    def export_private(self) -> State:
        return self._round.sender.export_state()

    def import_private(self, state: State) -> None:
        self._round.sender.import_state(state)


def _round_of(context: StrategyContext, servers: int | None) -> SharedRound | RemoteRound:
    if context.arena.hosts is None:
        return SharedRound(context)
    from phalanx.sync.store.remote.remote_round import RemoteRound

    return RemoteRound(context, servers)
