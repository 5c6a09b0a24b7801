"""Lays an optimizer's parameters in flat buffers: one buffer per dtype, cut into shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.utils.dlpack
from torch import Tensor

from phalanx.core.errors import InputError

ALIGN = 16  # elements: shards begin on a cache line, for float32 and wider types


@dataclass(frozen=True)
class ParameterPlace:
    """Where one parameter lies in its flat buffer."""

    start: int
    end: int
    group: int
    shape: torch.Size
    stride: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """Return the parameter as a view of ``flat``, with its own memory format."""
        return flat[self.start : self.end].as_strided(
            self.shape, self.stride, flat.storage_offset() + self.start
        )

    def own(self, flat: Tensor) -> Tensor:
        """Return a tensor like :meth:`view` with its own storage, because a view is saved with the
        storage of all parameters."""
        part: Tensor = torch.utils.dlpack.from_dlpack(flat[self.start : self.end])
        return part.as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Piece:
    """The part of a parameter that lies in one shard."""

    parameter: int
    start: int
    end: int
    group: int


@dataclass(frozen=True)
class Layout:
    """All trainable parameters of one dtype, in the order of the optimizer's groups."""

    dtype: torch.dtype
    size: int
    places: tuple[ParameterPlace, ...]
    shards: tuple[tuple[Piece, ...], ...]

    def bounds(self, shard: int) -> tuple[int, int]:
        pieces = self.shards[shard]
        return (pieces[0].start, pieces[-1].end) if pieces else (0, 0)


def trainable(optimizer: torch.optim.Optimizer) -> list[tuple[int, Tensor]]:
    """Return (group, parameter) of everything that is trained; a tied parameter comes once."""
    seen: set[int] = set()
    found = []
    for group, entries in enumerate(optimizer.param_groups):
        for parameter in entries["params"]:
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                found.append((group, parameter))
    if not found:
        raise InputError(
            "the optimizer has no parameter that needs a gradient",
            "Give it the parameters of your model: optim.SGD(model.parameters(), lr=0.1)",
        )
    return found


def by_dtype(
    parameters: Sequence[tuple[int, Tensor]],
) -> dict[torch.dtype, list[tuple[int, Tensor]]]:
    spaces: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
    for group, parameter in parameters:
        spaces.setdefault(parameter.dtype, []).append((group, parameter))
    return spaces


def make_layout(parameters: Sequence[tuple[int, Tensor]], shards: int) -> Layout:
    """Lay ``parameters`` (of one dtype) end to end and cut them into ``shards`` equal parts."""
    places, at = [], 0
    for group, parameter in parameters:
        places.append(_place(parameter, group, at))
        at += parameter.numel()
    return Layout(parameters[0][1].dtype, at, tuple(places), _cut(places, at, shards))


def reshard(layout: Layout, shards: int) -> Layout:
    """Cut the same parameters, in the same places, into another number of parts."""
    return replace(layout, shards=_cut(layout.places, layout.size, shards))


def _cut(places: Sequence[ParameterPlace], size: int, shards: int) -> tuple[tuple[Piece, ...], ...]:
    cut = -(-size // shards)
    cut = -(-cut // ALIGN) * ALIGN
    return tuple(
        _pieces(places, min(size, i * cut), min(size, (i + 1) * cut)) for i in range(shards)
    )


def _place(parameter: Tensor, group: int, at: int) -> ParameterPlace:
    if parameter.layout != torch.strided:
        raise InputError("a parameter is sparse", "Use dense parameters.")
    dense = torch.empty_like(parameter, memory_format=torch.preserve_format, device="meta")
    return ParameterPlace(at, at + parameter.numel(), group, parameter.shape, dense.stride())


def _pieces(places: Sequence[ParameterPlace], low: int, high: int) -> tuple[Piece, ...]:
    return tuple(
        Piece(i, max(p.start, low), min(p.end, high), p.group)
        for i, p in enumerate(places)
        if max(p.start, low) < min(p.end, high)
    )
