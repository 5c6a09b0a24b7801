"""Synchronous data parallelism: reduce-scatter, update, and on one machine nothing to gather.

Each worker sums one slice of the gradients of all on its machine and updates that slice of the
parameters, which they all see. It is the reduce-scatter and all-gather of Rabenseifner,
"Optimization of collective reduction operations" (2004), where the gather costs nothing because the
memory is shared, with the optimizer sharded between the halves as in Rajbhandari et al., "ZeRO"
(2020).
"""

from __future__ import annotations

from torch import Tensor

from phalanx.sync.reduce.reducer import Reducer
from phalanx.sync.state.gradients import set_grad
from phalanx.sync.state.replica import Masks
from phalanx.sync.state.shared_state import State
from phalanx.sync.strategies.team_strategy import TeamStrategy
from phalanx.sync.strategy import StrategyContext, Timing


class AllReduce(TeamStrategy):
    """Takes two barriers a step: gradients are there; parameters are updated. One more is needed if
    the optimizer is not element-wise, or gradients are clipped or may not be finite."""

    def __init__(self, context: StrategyContext, topology: str | None = None) -> None:
        super().__init__(context)
        self._topology = topology
        self._clipped: Masks = []
        """The parameters that any worker used for the gradient that was clipped before its step."""
        self._hidden = 0.0
        self.offers = self._reducer = Reducer(context, topology=topology, starts=True)
        if self._shared.elementwise:
            layouts, shard = len(self._replica.layouts), self._host.rank
            self._optimizers = [self._shared.optimizer_of(i, shard) for i in range(layouts)]

    def begin(self) -> None:
        self._reducer.begin()
        super().begin()
        self._reducer.go_ahead()

    def distrust(self) -> None:
        self._reducer.distrust()

    def follow(self) -> Timing:
        met = self._clock.now()
        masks = self._reduce()
        self._replica.drop_gradients()
        return self._take(masks, met)

    def _reduce(self) -> Masks:
        masks = self._reducer.reduce()
        if self._reducer.ahead is not None:
            self._hidden = self._reducer.ahead.hidden
        if self._toll.charges:
            self._reducer.take_time(self._topology)
        return masks

    def clip_gradients(self, weight: float, clip: float) -> float | None:
        self._reducer.offer(weight, clip)
        self._team.meet()
        self._clipped = self._reduce()
        if self._reducer.apart:
            self._host.barrier()  # another backward pass may write where sums are being clipped
        return self._reducer.norm

    def step_clipped(self) -> Timing:
        met = self._clock.now()
        self._replica.drop_gradients()
        timing = self._take(self._clipped, met)
        timing.bytes_sent = self._reducer.bytes_sent
        return timing

    @property
    def steps_agreed(self) -> bool:
        """Whether a step can use the agreed gradients: not if a codec has to encode them."""
        return self._context.encoding.codec is None

    def step_agreed(self) -> Timing:
        met = self._clock.now()
        masks, self._hidden, self._reducer.norm = self._reducer.keep_own(), 0.0, None
        self._reducer.check()
        self._replica.drop_gradients()
        return self._take(masks, met)

    def _take(self, masks: Masks, met: float) -> Timing:
        """Update the parameters with the reduced gradients."""
        now, reduced, refused = self._clock.now, self._clock.now(), self._reducer.refused
        if refused is None:
            (self._update if self._shared.elementwise else self._update_whole)(masks)
        if self._toll.charges:
            self._toll.update()
        updated = now()
        self._host.barrier()
        if self._staged:
            self.refresh()
        settled = now() - updated
        return Timing(
            reduce=reduced - met, update=updated - reduced, settle=settled, refused=refused,
            hidden=self._hidden, norm=self._reducer.norm,
        )  # fmt: skip

    def _update(self, masks: Masks) -> None:
        for optimizer, own, mask in zip(
            self._optimizers, self._reducer.reduced, masks, strict=True
        ):
            optimizer.update(own[0], mask)

    def _update_whole(self, used: Masks) -> None:
        """Run an optimizer that is not element-wise on a host's first worker, for all there."""
        whole = [gradients[0] for gradients in self._shared.gradients]
        if not self._reducer.apart:
            for flat, layout, own in zip(
                whole, self._replica.layouts, self._reducer.reduced, strict=True
            ):
                flat[slice(*layout.bounds(self._host.rank))] = own[0]
        self._host.barrier()
        if self._host.rank == 0:
            self._step_users_optimizer(whole, used)

    def _step_users_optimizer(self, whole: list[Tensor], used: Masks) -> None:
        replica = self._replica
        for i, layout in enumerate(replica.layouts):
            for n, (place, parameter) in enumerate(
                zip(layout.places, replica.parameters[i], strict=True)
            ):
                mask = used[i]
                if mask is None or mask[n]:
                    set_grad(parameter, place.view(whole[i]).to(parameter.device))
        replica.optimizer.step()
        replica.optimizer.zero_grad(set_to_none=True)
        if self._staged:  # the parameters are views of these
            replica.staging.fetch(zip(self._shared.parameters, self._staged, strict=True))

    def export_private(self) -> State:
        return self._reducer.sender.export_state()

    def import_private(self, state: State) -> None:
        self._reducer.sender.import_state(state)
