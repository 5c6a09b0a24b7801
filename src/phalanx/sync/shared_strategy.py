"""What strategies that work in shared memory have in common."""

from __future__ import annotations

from phalanx.sync.shared_state import State
from phalanx.sync.strategy import StrategyContext, Timing


class SharedStrategy:
    """Parameters lie in the shared state; a model on an accelerator trains a copy of them.

    A subclass adds ``exchange``. One that is not lockstep has nothing to offer: it never steps
    together with others.
    """

    def __init__(self, context: StrategyContext) -> None:
        self._replica, self._shared = context.replica, context.shared
        self._arena, self._clock = context.arena, context.clock
        on_host = self._replica.device.type == "cpu"
        self._staged = [] if on_host else self._replica.private_flats()

    def begin(self) -> None:
        self.bind()
        self.refresh()
        self._arena.barrier()

    def bind(self) -> None:
        self._replica.bind(self._staged or self._shared.parameters)

    def offer(self, weight: float, clip: float | None = None) -> None:
        pass

    def follow(self) -> Timing:
        return Timing()

    def refresh(self) -> None:
        """On a host there is nothing to fetch: the model reads the shared parameters."""
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
