"""The user's own optimizer class, run on shards of flat buffers.

An element-wise optimizer treats every number alike, so it can run on any slice of the
parameters. Its state (momentum and the like, one value per parameter element) lies in flat
*slots* beside the parameters, so that the next update can be made by any holder of the shard:
this worker, another one, or another strategy after a switch.
"""

from __future__ import annotations

import inspect
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from phalanx.sync.state.layout import Layout, Piece

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adamax,
    torch.optim.RAdam,
)
_FUSED = (torch.optim.Adam, torch.optim.AdamW)


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of these classes or a rule of Keras; subclasses may do anything."""
    rules = sys.modules.get("phalanx.sync.state.keras_rules")  # loaded if such a rule is used
    return type(optimizer) in (*ELEMENTWISE, *(rules.KERAS_RULES if rules else ()))


def elementwise_kind(name: str) -> type[torch.optim.Optimizer] | None:
    """Return the class of that name, if it is element-wise."""
    from phalanx.sync.state.keras_rules import KERAS_RULES

    return {kind.__name__: kind for kind in (*ELEMENTWISE, *KERAS_RULES)}.get(name)


@dataclass(frozen=True)
class SlotNames:
    """Names of an optimizer's state: flat tensors, and single numbers."""

    flat: tuple[str, ...]
    scalar: tuple[str, ...]


def discover_slots(optimizer: torch.optim.Optimizer) -> SlotNames:
    """Find out what state an optimizer keeps, by a step of a toy of the same class."""
    flat: dict[str, None] = {}
    scalar: dict[str, None] = {}
    for group in optimizer.param_groups:
        toy = torch.ones(2)
        toy.grad = torch.ones(2)
        kind = type(optimizer)
        copy = kind([{**_options(kind, group), "params": [toy]}])  # type: ignore[call-arg]
        _bare_step(kind)(copy)
        for name, value in copy.state[toy].items():
            if isinstance(value, Tensor):
                (flat if value.numel() == toy.numel() else scalar)[name] = None
    return SlotNames(tuple(flat), tuple(scalar))


def _bare_step(kind: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return the step without wrappers for profilers and hooks, which cost much."""
    step: Callable[..., Any] = inspect.unwrap(kind.step)

    def bare(optimizer: torch.optim.Optimizer) -> None:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # like ``no_grad``, for a quarter of its cost
        try:
            step(optimizer)
        finally:
            torch._C._set_grad_enabled(before)

    return bare


def _options(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> dict[str, Any]:
    options = {k: v for k, v in group.items() if k not in ("params", "initial_lr")}
    if options.get("capturable"):  # it is for graphs on a GPU, and shards are in memory of the host
        options["capturable"] = False
    if any(options.get(name) is not None for name in ("foreach", "fused")):
        return options
    if not options.get("differentiable"):
        # A fused step saves passes over memory if there are several; if not, a plain loop is best.
        fused = kind in _FUSED or (kind is torch.optim.SGD and options["momentum"] != 0)
        options["fused" if fused else "foreach"] = fused
    return options


@dataclass(frozen=True)
class _Segment:
    """A run of neighbouring pieces that are updated as one tensor."""

    first: int
    last: int
    start: int
    end: int
    group: int
    fresh: bool


class ShardOptimizer:
    """Updates one shard of one flat buffer.

    ``parameters``, ``slots`` and ``steps`` may be shared with other workers; ``steps`` counts
    the updates of each piece. Pieces are merged into as few tensors as their groups and counts
    allow, which is one per group as long as every parameter is used in every step.
    """

    def __init__(
        self,
        source: torch.optim.Optimizer,
        layout: Layout,
        shard: int,
        parameters: Tensor,
        slots: dict[str, Tensor],
        steps: Tensor,
        scalars: Sequence[str],
    ) -> None:
        self._source = source
        self._step = _bare_step(type(source))
        self._pieces = layout.shards[shard]
        self._parameters, self._slots, self._steps = parameters, slots, steps
        # A memoryview: NumPy's operations would cost as much as the update of a small shard.
        self._counts = steps.numpy().data
        self._scalars = scalars
        self._low = layout.bounds(shard)[0]
        self._key: object = None
        self._segments: list[_Segment] = []
        self._tensors: list[Tensor] = []
        self._groups: list[dict[str, Any]] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._gradient: Tensor | None = None

    def update(self, gradient: Tensor, used: bytes | None, rate_factor: float = 1.0) -> None:
        """Apply ``gradient`` (of this shard); parameters that were not ``used`` are passed over."""
        if not self._pieces:
            return
        self._arrange(gradient, used)
        if self._optimizer is None:
            return
        for mine, segment in zip(self._optimizer.param_groups, self._segments, strict=True):
            theirs = self._source.param_groups[segment.group]
            for name, value in theirs.items():
                if name not in ("params", "fused", "foreach", "capturable"):
                    mine[name] = value
            rate = theirs["lr"]
            mine["lr"] = (rate.cpu() if isinstance(rate, Tensor) else rate) * rate_factor
        self._step(self._optimizer)
        self._count()

    def _arrange(self, gradient: Tensor, used: bytes | None) -> None:
        counts: list[float] = list(self._counts)
        even = counts.count(counts[0]) == len(counts)
        key = (used, counts[0] == 0.0 if even else _apart(counts), id(gradient))
        if key == self._key:
            return
        self._key = key
        self._gradient = gradient  # kept alive, so that no other object gets its id
        segments: list[_Segment] = []
        for i, piece in enumerate(self._pieces):
            if used is not None and not used[piece.parameter]:
                continue
            if segments and self._joins(segments[-1], i, piece):
                segments[-1] = replace(segments[-1], last=i, end=piece.end)
            else:
                fresh = self._counts[i] == 0.0
                segments.append(_Segment(i, i, piece.start, piece.end, piece.group, fresh))
        self._segments = segments
        self._tensors = [self._parameters[s.start : s.end] for s in self._segments]
        self._optimizer = self._build(gradient) if self._segments else None

    def _joins(self, segment: _Segment, i: int, piece: Piece) -> bool:
        return (
            segment.last == i - 1
            and segment.group == piece.group
            and self._counts[segment.first] == self._counts[i]
        )

    def _build(self, gradient: Tensor) -> torch.optim.Optimizer:
        kind, groups = type(self._source), []
        for segment, tensor in zip(self._segments, self._tensors, strict=True):
            tensor.grad = gradient[segment.start - self._low : segment.end - self._low]
            options = _options(kind, self._source.param_groups[segment.group])
            groups.append({**options, "params": [tensor]})
        # Some optimizers (Adagrad) fill their state before the first step with a value, which they
        # take only from their constructor's arguments, not from the groups.
        name = "initial_accumulator_value"
        first = {k: value for k, value in self._source.defaults.items() if k == name}
        optimizer = kind(groups, **first)
        for segment, tensor in zip(self._segments, self._tensors, strict=True):
            if not segment.fresh:
                optimizer.state[tensor] = self._state(segment)
        return optimizer

    def _state(self, segment: _Segment) -> dict[str, Tensor]:
        state = {name: slot[segment.start : segment.end] for name, slot in self._slots.items()}
        for name in self._scalars:
            state[name] = self._steps[segment.first]
        return state

    def _count(self) -> None:
        assert self._optimizer is not None
        for segment, tensor in zip(self._segments, self._tensors, strict=True):
            count = float(self._counts[segment.first])  # the same for all pieces of the segment
            if segment.fresh:  # the optimizer has made its own state: move it into the slots
                self._adopt(segment, self._optimizer.state[tensor])
                count, self._key = 1.0, None
            elif not self._scalars:  # otherwise the optimizer has counted this step itself
                count += 1.0
            pieces = segment.last + 1 - segment.first
            self._counts[segment.first : segment.last + 1] = array("f", [count]) * pieces

    def _adopt(self, segment: _Segment, state: dict[str, Any]) -> None:
        for name, slot in self._slots.items():
            value = state.get(name)
            if isinstance(value, Tensor):
                slot[segment.start : segment.end].copy_(value)


def _apart(counts: list[float]) -> tuple[tuple[float, ...], bool]:
    """Return the differences of counts, and whether one of them has its first step ahead."""
    least = min(counts)
    return tuple(count - least for count in counts), least == 0.0
