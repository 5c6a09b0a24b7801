"""One worker's copy of what an optimizer trains: its parameters bound to flat buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from phalanx.core.errors import InputError
from phalanx.sync.state.gradients import Scale, get_grad, set_grad
from phalanx.sync.state.layout import (
    Layout,
    ParameterPlace,
    by_dtype,
    make_layout,
    reshard,
    trainable,
)
from phalanx.sync.state.staging import StagedCollector, Staging

_version, _requires_grad = attrgetter("_version"), attrgetter("requires_grad")
NOBODY: Collection[int] = frozenset()
Strays = list[tuple[Tensor, Tensor]]
Masks = list[bytes | None]
"""Which parameters had a gradient, per layout; ``None`` means all of them."""


class Replica:
    """The parameters of one optimizer on this worker, laid out flat, one layout per dtype.

    Gradients are left where autograd puts them and copied out when they are exchanged: that
    costs one pass over them, tells used parameters from unused ones (``None``) for nothing, and
    works with whatever the script does to ``.grad``.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, shards: int, *, private: bool = False
    ) -> None:
        spaces = by_dtype(trainable(optimizer))
        self.optimizer = optimizer
        self.parameters = [[p for _, p in members] for members in spaces.values()]
        self.layouts: list[Layout] = [make_layout(m, shards) for m in spaces.values()]
        self.device = self.parameters[0][0].device
        known = {id(p) for members in self.parameters for p in members}
        groups = optimizer.param_groups
        self._known = [(len(g["params"]), _features(g)) for g in groups]
        self._frozen = [p for g in groups for p in g["params"] if id(p) not in known]
        self.staging = Staging(self.device)
        self.private = private or self.staging.away
        """Whether this worker trains a copy of the weights, into which the script may write."""
        self.bound: list[Tensor] = []
        """The flat buffers in which the parameters lie."""
        self._places: list[tuple[Tensor, int, Tensor]] = []
        self._arrays: list[Any] = []
        self.scale = Scale()
        self._gathered: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []
        self._stop: Callable[[], None] | None = None

    @cached_property
    def _firsts(self) -> list[Tensor]:
        starts = [[place.start for place in layout.places] for layout in self.layouts]
        return [torch.tensor(places, device=self.device) for places in starts]

    def first_values(self) -> list[Any]:
        """Return the first value of each parameter in each layout, without waiting for a device."""
        found: list[Any] = []
        for array, places in self._arrays:
            found.append(array.take(places).tolist())
        if not found:
            pairs = zip(self.bound, self._firsts, strict=True)
            found = [flat.index_select(0, places) for flat, places in pairs]
        return found

    def written(self, apart: Collection[int]) -> int:
        """Return how often torch has counted a write to the parameters, except those with the ids
        ``apart``. The number grows with every write."""
        if apart:
            return sum(p._version for own in self.parameters for p in own if id(p) not in apart)
        count = 0
        for own in self.parameters:
            count += sum(map(_version, own))
        return count

    def outgrown(self) -> bool:
        """Whether the optimizer trains a parameter that is not laid out (unfrozen, or added), or
        keeps other state than before (a schedule has turned its momentum on)."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self._known):
            return True
        for group, (size, features) in zip(groups, self._known, strict=True):
            if len(group["params"]) != size or _features(group) != features:
                return True
        return any(map(_requires_grad, self._frozen))

    def copy_out(self, flats: list[Tensor]) -> None:
        """Write the parameters' values into ``flats``."""
        for layout, parameters, flat in zip(self.layouts, self.parameters, flats, strict=True):
            for place, parameter in zip(layout.places, parameters, strict=True):
                place.view(flat).copy_(parameter.detach())

    def bind(self, flats: list[Tensor]) -> None:
        """Make the parameters views of ``flats``; their values become what lies there."""
        self.bound, self._places, self._arrays = flats, [], []
        for layout, parameters, flat in zip(self.layouts, self.parameters, flats, strict=True):
            for place, parameter in zip(layout.places, parameters, strict=True):
                parameter.data = place.own(flat)
                self._places.append((parameter, parameter.data_ptr(), parameter.data))
        # NumPy takes a third of torch's time to read a few numbers.
        if all(flat.is_cpu and flat.dtype in (torch.float32, torch.float64) for flat in flats):
            pairs = zip(flats, self._firsts, strict=True)
            self._arrays = [(flat.numpy(), places.numpy()) for flat, places in pairs]

    def strays(self) -> Strays:
        """Return parameters that the script has moved (``p.data = …``), and their own places."""
        found = []
        for parameter, address, place in self._places:
            if parameter.data_ptr() != address:
                found.append((parameter, place))
        return found

    def private_flats(self) -> list[Tensor]:
        """Make flat buffers of this worker's own, on the parameters' device."""
        return [torch.empty(n.size, dtype=n.dtype, device=self.device) for n in self.layouts]

    def listen(
        self, indices: Collection[int], take: Callable[[int], None], stop: Callable[[], None]
    ) -> None:
        """Call ``take`` when one of these parameters of the first layout has its gradient, while
        the backward pass goes on, and ``stop`` at the end. This replaces an earlier listener."""
        self.stop_listening()
        self._stop = stop
        for index in indices:
            parameter = self.parameters[0][index]
            if parameter.requires_grad:  # the script may have frozen it since then
                hook = parameter.register_post_accumulate_grad_hook(lambda _, i=index: take(i))
                self._hooks.append(hook)

    def stop_listening(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        if self._stop is not None:
            self._stop()
            self._stop = None

    def leave(self) -> None:
        """Leave the other workers, in a forked process: give the parameters memory of their own,
        where the script has them, and stop listening to them."""
        self._stop = None
        self.stop_listening()
        for own in self.parameters:
            for parameter in own:
                parameter.data = parameter.data.clone()

    def drop_gradients(self) -> None:
        for parameters in self.parameters:
            for parameter in parameters:
                set_grad(parameter, None)

    def collector(
        self, shards: list[list[Tensor]], layouts: Sequence[Layout] | None = None
    ) -> list[Collector] | list[StagedCollector]:
        """Return what copies gradients into ``shards[layout][shard]``, per layout.

        ``layouts`` may cut the same parameters into other shards.
        """
        members = zip(layouts or self.layouts, self.parameters, shards, strict=True)
        if not self.staging.away:
            return [Collector(layout, own, targets, self.scale) for layout, own, targets in members]
        gathers = [self.gather(i) for i in range(len(self.layouts))]
        return [
            StagedCollector(self.staging, gather, flat, layout, targets)
            for (layout, _, targets), (gather, flat) in zip(members, gathers, strict=True)
        ]

    def gather(self, index: int) -> tuple[Collector, Tensor]:
        """Return a collector that copies the gradients of a layout into a buffer on their device,
        and the buffer."""
        self._gathered = self._gathered or self.private_flats()  # one for all strategies
        whole, flat = reshard(self.layouts[index], 1), self._gathered[index]
        return Collector(whole, self.parameters[index], [flat], self.scale), flat


def _features(group: dict[str, Any]) -> tuple[bool, ...]:
    """Return which options are on: they decide what state an optimizer keeps."""
    return bool(group.get("momentum")), bool(group.get("amsgrad")), bool(group.get("centered"))


class Collector:
    """Copies the gradients of one layout into the shards they belong to."""

    def __init__(
        self,
        layout: Layout,
        parameters: list[Tensor],
        shards: list[Tensor],
        scale: Scale | None = None,
    ) -> None:
        self._parameters, self._places = parameters, layout.places
        self._scale = scale or Scale()
        self._targets: list[list[Tensor]] = [[] for _ in parameters]
        for pieces, shard in zip(layout.shards, shards, strict=True):
            low = pieces[0].start if pieces else 0
            for piece in pieces:
                self._targets[piece.parameter].append(shard[piece.start - low : piece.end - low])
        self._whole = [
            _shaped(place, targets)
            for place, targets in zip(layout.places, self._targets, strict=True)
        ]
        self._sizes = [[len(target) for target in targets] for targets in self._targets]
        self._real = [torch.view_as_real(s).view(-1) if s.is_complex() else s for s in shards]

    def collect(self, gone: Collection[int] = NOBODY) -> bytes | None:
        """Copy gradients; return ``None`` if every parameter had one, else a byte for each.

        Those of ``gone`` have been copied.
        """
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        missing: set[int] = set()
        for i, parameter in enumerate(self._parameters):
            if i in gone:
                continue
            gradient, whole = get_grad(parameter), self._whole[i]
            if gradient is None:
                missing.add(i)
                torch._foreach_zero_(self._targets[i])
                continue
            if gradient.requires_grad:  # so that the graph that made it is not kept
                gradient = gradient.detach()
            if gradient.layout != torch.strided:
                raise InputError(
                    "a gradient is sparse, and this strategy exchanges dense ones",
                    "Use --view whole, or a dense layer: nn.Embedding(…, sparse=False).",
                )
            if whole is not None:
                targets.append(whole)
                sources.append(gradient)
            else:  # the parameter lies in several shards
                targets += self._targets[i]
                sources += _flat(gradient, self._places[i]).split_with_sizes(self._sizes[i])
        if targets:
            torch._foreach_copy_(targets, sources)
            if self._scale.value == 0.0:  # it does not count, even if it is not finite
                torch._foreach_zero_(targets)
            elif self._scale.value != 1.0:
                torch._foreach_mul_(targets, self._scale.value)
        if not missing:
            return None
        return bytes(i not in missing for i in range(len(self._parameters)))

    def is_finite(self) -> bool:
        """Whether what was collected last, and its squares, are certain to be finite."""
        squares = map(torch.dot, self._real, self._real)
        return all(map(math.isfinite, map(float, squares)))


def _shaped(place: ParameterPlace, targets: list[Tensor]) -> Tensor | None:
    """Return the one target of a parameter in the parameter's own shape."""
    if len(targets) != 1:
        return None
    return targets[0].as_strided(place.shape, place.stride)


def _flat(gradient: Tensor, place: ParameterPlace) -> Tensor:
    """Return the gradient's numbers in the order of the flat buffer."""
    if gradient.stride() != place.stride:
        ordered = torch.empty_strided(
            place.shape, place.stride, dtype=gradient.dtype, device=gradient.device
        )
        gradient = ordered.copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,))
