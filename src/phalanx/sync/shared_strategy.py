"""What strategies that work in shared memory have in common."""

from __future__ import annotations

import torch

from phalanx.sync.shared_state import State
from phalanx.sync.strategy import StrategyContext, Timing


class SharedStrategy:
    """Parameters lie in the shared state.

    A model on a CPU can train right there; one on an accelerator, or under a strategy that wants
    ``own_copy``, trains a copy of them. A subclass adds ``exchange``; the rest is there for those
    who need more than nothing.
    """

    own_copy = False
    every = 0

    def __init__(self, context: StrategyContext) -> None:
        self._replica, self._shared = context.replica, context.shared
        self._arena, self._clock, self._team = context.arena, context.clock, context.team
        in_place = self._replica.device.type == "cpu" and not self.own_copy
        self._staged: list[torch.Tensor] = [] if in_place else self._replica.private_flats()

    def begin(self) -> None:
        self.bind()
        self.refresh()
        self._arena.barrier()

    def bind(self) -> None:
        self._replica.bind(self._staged or self._shared.parameters)

    def arrive(self) -> None:
        pass

    def emphasise(self, factor: float) -> None:
        pass

    def offer(self, weight: float, clip: float | None = None) -> None:
        pass

    def follow(self) -> Timing:
        return Timing()

    def agree(self) -> Timing:
        return Timing()

    def rest(self) -> None:
        pass

    def refresh(self) -> None:
        """In place there is nothing to fetch: the model reads the shared parameters."""
        for staged, shared in zip(self._staged, self._shared.parameters, strict=False):
            staged.copy_(shared)

    def drain(self) -> None:
        self._arena.barrier()

    def export_state(self) -> State:
        return self._shared.export_state()

    def import_state(self, state: State) -> None:
        if self._arena.rank == 0:
            self._shared.import_state(state)
        self._arena.barrier()

    def export_private(self) -> State:
        return {}

    def import_private(self, state: State) -> None:
        pass
