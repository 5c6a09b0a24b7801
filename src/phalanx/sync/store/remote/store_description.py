"""What a client tells the servers of its optimizer: names and numbers, cut by server."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Payload
from phalanx.sync.codec.make import parts_of
from phalanx.sync.state.layout import Layout
from phalanx.sync.state.replica import Masks
from phalanx.sync.store.remote import store_messages as m

_LEFT_OUT = ("params", "capturable", "differentiable")
"""They say how and where the user's own process runs its optimizer."""
_FIRST_VALUES = ("initial_accumulator_value",)


def describe(
    optimizer: torch.optim.Optimizer, layouts: Sequence[Layout], server: int, codecs: Sequence[str]
) -> m.Description:
    """``server``'s share; ``layouts`` have one shard per server."""
    defaults = optimizer.defaults
    return m.Description(
        optimizer=type(optimizer).__name__,
        first_values={name: defaults[name] for name in _FIRST_VALUES if name in defaults},
        groups=group_options(optimizer),
        layouts=[_layout(layout, server) for layout in layouts],
        codecs=list(codecs),
    )


def group_options(optimizer: torch.optim.Optimizer) -> list[m.Options]:
    """The options of each group as plain values; what the user noted there beside them is not."""
    return [
        {
            name: _plain(value)
            for name, value in group.items()
            if name in optimizer.defaults and name not in _LEFT_OUT
        }
        for group in optimizer.param_groups
    ]


def _plain(value: object) -> m.Option:
    if isinstance(value, Tensor):
        return float(value)
    if isinstance(value, tuple | list):
        return [float(number) for number in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"an optimizer's option {value!r} is not a plain value")


def _layout(layout: Layout, server: int) -> m.LayoutOf:
    pieces = [
        m.PieceOf(piece.end - piece.start, piece.group, part.columns, part.offset)
        for piece, part in zip(layout.shards[server], parts_of(layout, server), strict=True)
    ]
    return m.LayoutOf(type_name(layout.dtype), pieces)


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def masks_of(used: Masks, layouts: Sequence[Layout], server: int) -> list[bytes | None]:
    """``used`` by parameter, as the pieces that ``server`` has of them."""
    return [
        None if mask is None else bytes(mask[piece.parameter] for piece in layout.shards[server])
        for mask, layout in zip(used, layouts, strict=True)
    ]


def encoded_of(codec: int, payloads: Sequence[Payload]) -> m.Encoded:
    """What announces ``payloads`` (one per layout)."""
    return m.Encoded(
        codec,
        [[m.TensorOf(type_name(t.dtype), list(t.shape)) for t in p.tensors] for p in payloads],
    )
