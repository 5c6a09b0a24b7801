"""One server's shard of a store: parameters, slots and counts, and what updates them.

This file does not use sockets. The optimizer is made from the name of its class, which has to be
one that is known to be element-wise, and from numbers: no code ever comes over the wire.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.core.errors import PhalanxError
from phalanx.core.spec.codecs import parse_codec
from phalanx.sync.codec.codec import Codec, Part, Payload
from phalanx.sync.codec.make import make_codec
from phalanx.sync.state.layout import Layout, Piece
from phalanx.sync.state.shard_optimizer import ShardOptimizer, discover_slots, elementwise_kind
from phalanx.sync.store.remote import store_messages as m

_FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in (*_FLOATS, "int8", "uint8", "int16", "int32", "int64")
}
_WIDEST = 8
"""Bytes of the widest value in any codec's message."""


class Shard:
    """The shard's state, which is read and changed under ``lock`` only."""

    def __init__(self, description: m.Description) -> None:
        self.description = description
        self.lock = threading.Lock()
        self.version = 0
        self.applied: dict[int, int] = {}
        """Samples that each worker, by rank, had been given at its last push."""
        self.fenced: set[int] = set()
        """Ranks of lost workers, whose pushes that are still under way are refused."""
        self._source = _stand_in(description)
        names = discover_slots(self._source)
        self.slot_names, self._scalars = list(names.flat), names.scalar
        self.layouts = [_layout(n, len(description.groups)) for n in description.layouts]
        self.parameters = self.blank()
        self.slots = [{name: torch.zeros_like(p) for name in names.flat} for p in self.parameters]
        self.steps = [torch.zeros(len(n.shards[0])) for n in self.layouts]

    def blank(self) -> list[Tensor]:
        """Return memory for a gradient, per layout."""
        return [torch.zeros(n.size, dtype=n.dtype) for n in self.layouts]

    def state(self) -> list[Tensor]:
        """Return everything that an update reads or writes, in the order of the wire."""
        slots = [slot for slots in self.slots for slot in slots.values()]
        return [*self.parameters, *slots, *self.steps]

    def load(self, state: Sequence[Tensor]) -> None:
        for mine, given in zip(self.state(), state, strict=True):
            mine.copy_(given)
        self.version += 1

    def optimizers(self) -> list[ShardOptimizer]:
        """Make optimizers for one gradient buffer: each remembers the buffer it was used with."""
        return [
            ShardOptimizer(self._source, n, 0, p, slots, steps, self._scalars)
            for n, p, slots, steps in zip(
                self.layouts, self.parameters, self.slots, self.steps, strict=True
            )
        ]

    def check(self, groups: Sequence[m.Options], used: Sequence[bytes | None]) -> None:
        known = self.description.groups
        if [set(g) for g in groups] != [set(g) for g in known]:
            raise m.StoreRefused("the groups are not those that the store was opened with")
        sizes = [len(n.shards[0]) for n in self.layouts]
        if len(used) != len(sizes) or any(
            mask is not None and len(mask) != size for mask, size in zip(used, sizes, strict=True)
        ):
            raise m.StoreRefused("the used parameters are not those that the store was opened with")

    def update(
        self,
        optimizers: Sequence[ShardOptimizer],
        gradients: Sequence[Tensor],
        groups: Sequence[m.Options],
        used: Sequence[bytes | None],
        rate_factor: float = 1.0,
    ) -> None:
        """Take a step with ``gradients``; rates and all other numbers are those of ``groups``."""
        for mine, given in zip(self._source.param_groups, groups, strict=True):
            mine.update(_values(given))
        for optimizer, gradient, mask in zip(optimizers, gradients, used, strict=True):
            optimizer.update(gradient, mask, rate_factor)
        self.version += 1


class Decoders:
    """The codecs of one request at a time; they have scratch memory."""

    def __init__(self, description: m.Description) -> None:
        self._layouts = description.layouts
        parts = [_parts(n) for n in description.layouts]
        self._codecs: list[list[Codec]] = [
            [make_codec(parse_codec(text), p, seed=0) for p in parts] for text in description.codecs
        ]
        self._last: tuple[m.Encoded, list[list[Tensor]]] | None = None

    def tensors(self, encoded: m.Encoded) -> list[list[Tensor]]:
        """Return memory for the message that ``encoded`` announces; refuse one that is invalid."""
        if self._last is not None and self._last[0] == encoded:
            return self._last[1]
        if encoded.codec >= len(self._codecs) or len(encoded.layouts) != len(self._layouts):
            raise m.StoreRefused("the message is in a codec that the store was not opened with")
        for layout, infos in zip(self._layouts, encoded.layouts, strict=True):
            limit = _WIDEST * sum(piece.size for piece in layout.pieces) + 64
            if sum(map(tensor_bytes, infos)) > limit:
                raise m.StoreRefused("an encoded gradient is larger than the gradient itself")
        tensors = [
            [torch.empty(info.shape, dtype=DTYPES[info.dtype]) for info in infos]
            for infos in encoded.layouts
        ]
        self._last = (encoded, tensors)
        return tensors

    def decode(self, encoded: m.Encoded, tensors: list[list[Tensor]], out: list[Tensor]) -> None:
        codecs = self._codecs[encoded.codec]
        for codec, message, target in zip(codecs, tensors, out, strict=True):
            try:
                codec.decode(Payload(tuple(message)), target)
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                raise m.StoreRefused(f"a gradient cannot be decoded ({error})") from None


def tensor_bytes(info: m.TensorOf) -> int:
    if info.dtype not in DTYPES:
        raise m.StoreRefused(f"'{info.dtype}' is not a type of number")
    count = DTYPES[info.dtype].itemsize
    for length in info.shape:
        count *= length
    return count


def byte_view(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor as bytes."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def _stand_in(description: m.Description) -> torch.optim.Optimizer:
    kind = elementwise_kind(description.optimizer)
    if kind is None:
        raise m.StoreRefused(f"the optimizer {description.optimizer[:60]} cannot run in the store")
    allowed = set(kind([torch.zeros(1)]).defaults)  # type: ignore[call-arg]
    for options in (*description.groups, description.first_values):
        if unknown := set(options) - allowed:
            raise m.StoreRefused(f"{kind.__name__} has no option '{min(unknown)}'")
    groups = [{**_values(g), "params": [torch.zeros(1)]} for g in description.groups]
    try:
        return kind(groups, **_values(description.first_values))
    except (ValueError, TypeError, RuntimeError, PhalanxError) as error:
        raise m.StoreRefused(f"{kind.__name__} refuses its options ({error})") from None


def _values(options: m.Options) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}


def _spans(layout: m.LayoutOf) -> Iterator[tuple[int, int]]:
    at = 0
    for piece in layout.pieces:
        yield at, at + piece.size
        at += piece.size


def _layout(given: m.LayoutOf, groups: int) -> Layout:
    """Make a layout in which each piece is a parameter: the server knows its own pieces only."""
    if given.dtype not in _FLOATS:
        raise m.StoreRefused(f"'{given.dtype[:60]}' is not a type of parameter")
    if any(piece.group >= groups for piece in given.pieces):
        raise m.StoreRefused("a parameter is in a group that does not exist")
    spans = list(_spans(given))
    pieces = tuple(
        Piece(i, start, end, piece.group)
        for i, ((start, end), piece) in enumerate(zip(spans, given.pieces, strict=True))
    )
    return Layout(DTYPES[given.dtype], spans[-1][1] if spans else 0, (), (pieces,))


def _parts(given: m.LayoutOf) -> list[Part]:
    return [
        Part(start, end, piece.columns, piece.offset)
        for (start, end), piece in zip(_spans(given), given.pieces, strict=True)
    ]
