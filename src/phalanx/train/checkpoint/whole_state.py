"""The whole state of a training in one moment, and back: for checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from phalanx.sync.arena.arena import Arena
from phalanx.sync.state.model_buffers import SharedBuffers
from phalanx.sync.state.optimizer_state import State
from phalanx.sync.state.shared_state import SharedState
from phalanx.sync.strategies.strategy import Strategy
from phalanx.train.checkpoint.buffer_state import load_buffers, named_buffers


@dataclass(frozen=True)
class Captured:
    """What all have in common (the first worker has it), and what is this worker's own."""

    shared: State
    private: State


class WholeState:
    """Of several workers, who all stand still meanwhile."""

    def __init__(
        self,
        arena: Arena,
        models: Sequence[nn.Module],
        shared: Sequence[SharedState],
        buffers: SharedBuffers,
    ) -> None:
        self._arena, self._models = arena, models
        self._shared, self._buffers = shared, buffers

    def capture(self, strategies: Sequence[Strategy]) -> Captured:
        self._buffers.publish()
        self._arena.barrier()
        private = named_buffers(self._models) | self._buffers.export_counts()
        for i, strategy in enumerate(strategies):
            own = strategy.export_private()
            private |= {f"o{i}.{name}": value.clone() for name, value in own.items()}
        return Captured(self._common(strategies) if self._arena.rank == 0 else {}, private)

    def _common(self, strategies: Sequence[Strategy]) -> State:
        whole: State = {}
        for i, (shared, strategy) in enumerate(zip(self._shared, strategies, strict=True)):
            known = shared.export_state()
            extra = {n: v.clone() for n, v in strategy.export_state().items() if n not in known}
            whole |= {f"o{i}.{n}": v for n, v in (shared.export_whole() | extra).items()}
        saved = self._buffers.save()
        self._buffers.load(*self._buffers.read())
        whole |= named_buffers(self._models)
        self._buffers.restore(saved)
        return whole

    def restore(self, strategies: Sequence[Strategy], shared: State, private: State | None) -> None:
        for i, (state, strategy) in enumerate(zip(self._shared, strategies, strict=True)):
            found = part_of(shared, f"o{i}.")
            if self._arena.host.rank == 0 or not state.elementwise:
                state.import_whole(found)
            self._arena.barrier()
            strategy.import_state(found | state.export_state())
            strategy.begin()
            if private is not None:
                strategy.import_private(part_of(private, f"o{i}."))
        load_buffers(self._models, private if private is not None else shared)
        if private is not None:
            self._buffers.import_counts(private)
        self._buffers.publish()
        self._arena.barrier()


def part_of(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
