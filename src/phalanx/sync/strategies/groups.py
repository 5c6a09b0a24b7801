"""All-reduce inside groups of workers, asynchronous between the groups.

Only similar workers wait for each other: the mixed strategy of the Strategy Switch study, in the
spirit of Jiang et al., "Heterogeneity-aware distributed parameter servers" (2017). Each member sums
some slices of its group's gradients and pushes those to the store.
"""

from __future__ import annotations

import torch

from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.shared_state import State
from phalanx.sync.store.shared_store import make_store
from phalanx.sync.strategies.shared_strategy import StoreStrategy
from phalanx.sync.strategies.team_strategy import TeamStrategy
from phalanx.sync.strategy import StrategyContext, Timing


class Groups(StoreStrategy, TeamStrategy):
    """All-reduce in a group, which the engine forms (``size``, ``by``): ``context.team``."""

    def __init__(
        self,
        context: StrategyContext,
        size: int | None = None,
        by: str | None = None,
        servers: int | None = None,
    ) -> None:
        self.own_copy = self.own_copy or context.toll.apart
        super().__init__(context)
        self._store = make_store(context, servers)
        self.offers = self._reducer = Reducer(context)
        self._store.push_for(self._reducer)
        self._rate_factor, self._emphasis = 1.0 / context.rate_divisor, 1.0

    def emphasise(self, factor: float) -> None:
        self._emphasis = factor

    def begin(self) -> None:
        self._reducer.begin()
        self._store.begin()
        super().begin()

    def follow(self) -> Timing:
        now, timing, began = self._clock.now, Timing(), self._clock.now()
        masks = self._reducer.reduce()
        self._reducer.take_time()
        self._replica.drop_gradients()
        timing.refused, timing.norm = self._reducer.refused, self._reducer.norm
        timing.reduce = now() - began
        if self._emphasis != 1.0:
            torch._foreach_mul_([g for own in self._reducer.reduced for g in own], self._emphasis)
        if timing.refused is None:
            self._store.push_reduced(self._reducer, masks, self._rate_factor, timing)
        pushed = now()
        self._team.barrier()
        self._store.pull_reduced(self._reducer, self._staged)
        timing.settle = now() - pushed
        return timing

    def export_private(self) -> State:
        return self._reducer.sender.export_state() | self._store.export_private()

    def import_private(self, state: State) -> None:
        self._reducer.sender.import_state(state)
        self._store.import_private(state)
