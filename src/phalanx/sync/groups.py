"""All-reduce inside groups of workers, asynchronous between the groups.

Similar workers wait for each other, unlike ones do not: the mixed strategy of the Strategy Switch
study, in the spirit of Jiang et al., "Heterogeneity-aware distributed parameter servers" (2017).
Each member sums some slices of its group's gradients and pushes those to the store.
"""

from __future__ import annotations

import torch

from phalanx.sync.reducer import Reducer
from phalanx.sync.shared_state import State
from phalanx.sync.store import Store
from phalanx.sync.strategy import StrategyContext, Timing
from phalanx.sync.team_strategy import TeamStrategy


class Groups(TeamStrategy):
    """The engine forms the groups (``size``, ``by``); ``context.team`` is this worker's."""

    def __init__(
        self, context: StrategyContext, size: int | None = None, by: str | None = None
    ) -> None:
        super().__init__(context)
        self._store = Store(context)
        self._reducer = Reducer(context)
        # The store indexes gradients by shard; a member only ever touches its own.
        self._gradients = [
            dict(zip(self._reducer.shards, own, strict=True)) for own in self._reducer.reduced
        ]
        self._rate_factor, self._emphasis = 1.0 / context.rate_divisor, 1.0

    def emphasise(self, factor: float) -> None:
        self._emphasis = factor

    def begin(self) -> None:
        self._reducer.begin()
        super().begin()

    def offer(self, weight: float, clip: float | None = None) -> None:
        self._bytes = self._reducer.offer(weight, clip)

    def follow(self) -> Timing:
        now, timing, began = self._clock.now, Timing(), self._clock.now()
        self._replica.drop_gradients()
        masks = self._reducer.reduce()
        timing.reduce = now() - began
        if self._emphasis != 1.0:
            torch._foreach_mul_([g for own in self._reducer.reduced for g in own], self._emphasis)
        self._store.push(
            self._gradients, masks, self._rate_factor, timing, shards=self._reducer.shards
        )
        pushed = now()
        self._team.barrier()
        self.refresh()
        timing.settle = now() - pushed
        return timing

    def refresh(self) -> None:
        self._store.pull(self._staged)

    def export_private(self) -> State:
        return self._reducer.sender.export_state()

    def import_private(self, state: State) -> None:
        self._reducer.sender.import_state(state)
