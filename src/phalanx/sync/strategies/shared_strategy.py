"""The bases of strategies that work in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from phalanx.sync.arena.arena import shard_lock
from phalanx.sync.state.shared_state import State
from phalanx.sync.strategy import Strategy, StrategyContext

if TYPE_CHECKING:
    from phalanx.sync.store.remote.remote_store import RemoteStore
    from phalanx.sync.store.shared_store import SharedStore


class SharedStrategy(Strategy):
    """A strategy whose parameters lie in the shared state.

    A model on a CPU can train right there; one on an accelerator, or under a strategy that wants
    ``own_copy``, trains a copy of them. A subclass adds ``exchange``.
    """

    own_copy = False

    def __init__(self, context: StrategyContext) -> None:
        self._replica, self._shared = context.replica, context.shared
        self._arena, self._clock, self._team = context.arena, context.clock, context.team
        self._host, self._toll = context.arena.host, context.toll
        in_place = not self._replica.private and not self.own_copy
        self._staged: list[torch.Tensor] = [] if in_place else self._replica.private_flats()

    def begin(self) -> None:
        self._replica.stop_listening()
        self.bind()
        self.refresh()
        self._arena.barrier()

    def bind(self) -> None:
        self._replica.bind(self._staged or self._shared.parameters)

    def refresh(self) -> None:
        """Fetch the parameters if the model has a copy; else it reads the shared ones."""
        if self._staged:
            copies = zip(self._staged, self._shared.parameters, strict=True)
            self._replica.staging.fetch(copies)

    def snapshot(self, flats: list[torch.Tensor]) -> None:
        for shard in range(len(self._replica.layouts[0].shards)):
            with self._host.lock(shard_lock(shard)):  # a shard must not be read while it is updated
                for flat, values, layout in zip(
                    flats, self._shared.parameters, self._replica.layouts, strict=True
                ):
                    part = slice(*layout.bounds(shard))
                    flat[part] = values[part]

    def drain(self) -> None:
        self._arena.barrier()

    def export_state(self) -> State:
        return self._shared.export_state()

    def import_state(self, state: State) -> None:
        if self._host.rank == 0:
            self._shared.import_state(state)
        self._arena.barrier()

    def write_optimizer(self) -> None:
        if self._shared.elementwise:
            self._shared.write_optimizer()


class StoreStrategy(SharedStrategy):
    """A strategy whose parameters and optimizer state are in the store."""

    _store: SharedStore | RemoteStore

    def refresh(self) -> None:
        self._store.pull(self._staged)

    def snapshot(self, flats: list[torch.Tensor]) -> None:
        self._store.pull(flats)

    def drain(self) -> None:
        super().drain()
        self._store.settle()

    def write_optimizer(self) -> None:
        with self._store.holding_slots():
            super().write_optimizer()
