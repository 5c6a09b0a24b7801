"""What lies between a worker and whoever takes its gradients: a codec, and a rate.

On one host both are about honesty rather than need: memory takes whole gradients at full speed.
A codec changes them exactly as it would between hosts and its bytes are counted; an emulated
rate lets the time pass that those bytes would take.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from phalanx.core.codecs import CodecSpec
from phalanx.sync.codec.feedback import Compressor
from phalanx.sync.codec.make import make_compressor, parts_of
from phalanx.sync.layout import Layout

State = dict[str, Tensor]


@dataclass(frozen=True)
class Wire:
    """Given to a strategy; makes a :class:`Sender` for each stream of tensors it sends."""

    codec: CodecSpec | None = None
    bits_per_second: float | None = None
    sleep: Callable[[float], None] | None = None
    seed: int = 0

    def sender(self, streams: Sequence[tuple[str, Layout, int, Tensor]]) -> Sender:
        """``streams``: a name, and the layout, shard and memory of what is sent."""
        if self.codec is None:
            return Sender(self, [(name, tensor, None) for name, _, _, tensor in streams])
        return Sender(
            self,
            [
                (name, tensor, self._compressor(name, layout, shard, tensor))
                for name, layout, shard, tensor in streams
            ],
        )

    def _compressor(self, name: str, layout: Layout, shard: int, tensor: Tensor) -> Compressor:
        assert self.codec is not None
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        seed = int.from_bytes(digest[:6], "big")
        return make_compressor(
            self.codec, parts_of(layout, shard), tensor.numel(), tensor.dtype, seed
        )

    def take_time(self, bytes_sent: int) -> None:
        if self.bits_per_second is not None and self.sleep is not None:
            self.sleep(bytes_sent * 8 / self.bits_per_second)


class Sender:
    """Sends the same tensors again and again."""

    def __init__(self, wire: Wire, streams: list[tuple[str, Tensor, Compressor | None]]) -> None:
        self._wire, self._streams = wire, streams
        self._plain = sum(t.numel() * t.itemsize for _, t, c in streams if c is None)
        self._coded = [(tensor, c) for _, tensor, c in streams if c is not None]

    def send(self) -> int:
        """The tensors become what the receivers see; returns the bytes that takes."""
        count = self._plain + sum(c.compress(tensor).nbytes for tensor, c in self._coded)
        self._wire.take_time(count)
        return count

    def export_state(self) -> State:
        return {
            f"wire.{name}.{key}": value
            for name, _, compressor in self._streams
            if compressor is not None
            for key, value in compressor.export_state().items()
        }

    def import_state(self, state: State) -> None:
        for name, _, compressor in self._streams:
            prefix = f"wire.{name}."
            mine = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            if compressor is not None and mine:
                compressor.import_state(mine)
