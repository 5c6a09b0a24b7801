"""Buffers in which a worker's gradients wait to be pushed: one for each shard of the store."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Payload
from phalanx.sync.codec.encoding import Encoding
from phalanx.sync.state.gradient_values import are_sound, clip_factor, squared_norm
from phalanx.sync.state.layout import Layout
from phalanx.sync.state.replica import Masks, Replica


class PushBuffers:
    """The gradients of a push: ``flats`` are whole, ``gradients[layout][shard]`` their parts."""

    def __init__(self, replica: Replica, layouts: Sequence[Layout], encoding: Encoding) -> None:
        shards = range(len(layouts[0].shards))
        self.flats = [replica.staging.host_buffer(n.size, n.dtype) for n in layouts]
        self.gradients = [
            [flat[slice(*layout.bounds(shard))] for shard in shards]
            for flat, layout in zip(self.flats, layouts, strict=True)
        ]
        self._collectors = replica.collector(self.gradients, layouts)
        self.sender = encoding.sender(
            [
                (f"{i}.{shard}", layout, shard, self.gradients[i][shard])
                for shard in shards
                for i, layout in enumerate(layouts)
            ]
        )
        self.payloads: list[Payload] | None = None
        """Messages that a codec made of the gradients, shard by shard, for a real wire."""
        self.total = 0
        """Samples that this worker had been given when these gradients were collected."""
        self.norm: float | None = None
        """The norm of the gradients of this push, before it was limited."""

    def collect(self) -> Masks:
        """Copy the parameters' gradients into the buffers; return which parameters had one."""
        return [collector.collect() for collector in self._collectors]

    def is_finite(self) -> bool:
        """Whether the collected gradients are finite."""
        return all(c.is_finite() for c in self._collectors) or are_sound(self.flats)

    def is_encoded_finite(self) -> bool:
        """Whether the gradients are finite after a codec has changed them."""
        return self.sender.is_plain or are_sound(self.flats)

    def normalise(self, weight: float, clip: float | None, emphasis: float = 1.0) -> None:
        """Turn a sum of weighted means into a mean, with a norm that ``clip`` limits.

        ``emphasis`` weighs the push against those of other workers. It scales the gradient, not the
        learning rate, because momentum accumulates gradients.
        """
        self.norm = None
        if weight == 1.0 and clip is None and emphasis == 1.0:
            return
        factor = 1.0 / weight
        if clip is not None:
            self.norm = math.sqrt(squared_norm(self._parts())) * factor
            factor *= clip_factor(self.norm**2, clip)
        factor *= emphasis
        if factor != 1.0:
            torch._foreach_mul_(self._parts(), factor)

    def _parts(self) -> list[Tensor]:
        return [gradient for shards in self.gradients for gradient in shards]
