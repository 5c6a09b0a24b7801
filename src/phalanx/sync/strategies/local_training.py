"""The base of strategies in which workers train apart, and come together now and then."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.optimizer_state import export_tensors, load_tensors, read_slot
from phalanx.sync.state.shared_state import State
from phalanx.sync.strategies.shared_strategy import SharedStrategy
from phalanx.sync.strategies.single import Single
from phalanx.sync.strategy import StrategyContext, Timing


class Local(SharedStrategy):
    """Runs the user's own optimizer on a copy; the shared parameters are the last agreed ones.

    At the end of a round each worker shows how far it has moved; the mean of that, weighted by
    samples, moves the shared parameters in the way that a subclass says (``_move``).
    """

    own_copy = True

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._alone = Single(self._replica.optimizer, self._clock)
        self._reducer = Reducer(context)
        host_buffer = self._replica.staging.host_buffer
        self._moved = [host_buffer(n.size, n.dtype) for n in self._replica.layouts]
        self._weight = 0.0
        workers = self._arena.workers
        self._apart = self._arena.region(f"{context.tag}.apart", workers, torch.uint8).numpy()
        """Whether each worker has taken a step since the last round."""

    def begin(self) -> None:
        if self._shared.elementwise:
            self._shared.write_optimizer()
        self._reducer.begin()
        super().begin()

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        self._apart[self._arena.rank] = 1
        timing, stepped = self._alone.exchange(self._replica.scale.value, clip), self._clock.now()
        self._toll.update()
        timing.update += self._clock.now() - stepped
        if timing.refused is None:
            self._weight += weight
        else:
            timing.refused = (self._arena.rank,)
        return timing

    def agree(self) -> Timing:
        return self._come_together(self._team.meet)

    def _come_together(self, meet: Callable[[], object]) -> Timing:
        now, ready = self._clock.now, self._clock.now()
        self._replica.staging.fetch(zip(self._moved, self._staged, strict=True))
        for moved, agreed in zip(self._moved, self._shared.parameters, strict=True):
            moved.sub_(agreed)
        weight, self._weight = self._weight, 0.0
        # Multiplied by the weight, because the reducer divides by the sum of weights.
        if weight != 1.0:
            torch._foreach_mul_(self._moved, weight)
        self._reducer.offer_flats(self._moved, weight)
        self._reducer.encode()
        sent = now()
        meet()
        met = now()
        self._reducer.reduce()
        self._reducer.take_time()
        if self._reducer.refused is None:
            for i, shard in enumerate(self._own_slices()):
                self._move(i, shard, self._reducer.reduced[i][0])
        updated = now()
        self._team.barrier()
        self._apart[self._arena.rank] = 0
        self.refresh()
        return Timing(
            send=sent - ready,
            wait=met - sent,
            update=updated - met,
            settle=now() - updated,
            bytes_sent=self._reducer.bytes_sent,
            refused=self._reducer.refused,
        )

    def _own_slices(self) -> list[Tensor]:
        return [
            parameters[slice(*layout.bounds(self._host.rank))]
            for parameters, layout in zip(
                self._shared.parameters, self._replica.layouts, strict=True
            )
        ]

    @abstractmethod
    def _move(self, layout: int, parameters: Tensor, mean: Tensor) -> None:
        """Move this worker's slice of the agreed parameters, given the mean movement."""

    def drain(self) -> None:
        """End the round: combine the steps since the last one, and the optimizers' state."""
        self._arena.barrier()
        if self._apart.any():
            self._come_together(self._team.barrier)
        if self._shared.elementwise:
            for name in self._shared.slots[0]:
                self._reducer.offer_flats(read_slot(self._replica, name), 1.0)
                self._team.barrier()
                self._reducer.reduce(coded=False, checked=False)
                for i, layout in enumerate(self._replica.layouts):
                    slot = self._shared.slots[i][name]
                    slot[slice(*layout.bounds(self._host.rank))] = self._reducer.reduced[i][0]
                self._team.barrier()
            if self._host.rank == 0:
                self._shared.take_steps_of_optimizer()
                self._shared.share_steps()
        super().drain()

    def write_optimizer(self) -> None:
        """Do nothing: the script's own optimizer steps here."""

    def export_private(self) -> State:
        return self._reducer.sender.export_state() | export_tensors(self._replica)

    def import_private(self, state: State) -> None:
        self._reducer.sender.import_state(state)
        load_tensors(self._replica, state)
