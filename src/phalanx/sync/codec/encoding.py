"""Encodes the gradients that a worker sends, and can emulate the rate of a link.

On one host neither is necessary, but both show how a training between hosts would behave: a codec
changes gradients exactly as it would there, and its bytes are counted; with an emulated rate,
sending takes the time that those bytes would take.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from phalanx.core.spec.codecs import CodecSpec
from phalanx.sync.state.layout import Layout
from phalanx.sync.state.shared_state import SharedState

if TYPE_CHECKING:
    from phalanx.sync.codec.codec import Payload
    from phalanx.sync.codec.feedback import Compressor

State = dict[str, Tensor]
Stream = tuple[str, Layout, int, Tensor]
"""The name, layout, shard and memory of a tensor that is sent."""


@dataclass(frozen=True)
class Encoding:
    """Makes a :class:`Sender` for each stream of tensors that a strategy sends."""

    codec: CodecSpec | None = None
    bits_per_second: float | None = None
    sleep: Callable[[float], None] | None = None
    seed: int = 0

    def sender(self, streams: Sequence[Stream]) -> Sender:
        return Sender(self, streams)

    def compressor(self, stream: Stream, visit: int) -> Compressor | None:
        """Make a stream's compressor, whose random numbers depend on its name and ``visit``."""
        if self.codec is None:
            return None
        from phalanx.sync.codec.make import make_compressor, parts_of  # most runs have no codec

        name, layout, shard, tensor = stream
        digest = hashlib.sha256(f"{self.seed} {name} {visit}".encode()).digest()
        seed = int.from_bytes(digest[:6], "big")
        return make_compressor(
            self.codec, parts_of(layout, shard), tensor.numel(), tensor.dtype, seed
        )

    def take_time(self, bytes_sent: int) -> None:
        if self.bits_per_second is not None and self.sleep is not None:
            self.sleep(bytes_sent * 8 / self.bits_per_second)


class Sender:
    """Encodes the same tensors each time they are sent, and counts their bytes."""

    def __init__(self, encoding: Encoding, streams: Sequence[Stream]) -> None:
        self._encoding, self._given = encoding, streams
        self._start(0)

    def _start(self, visit: int) -> None:
        self._streams = [(s[0], s[3], self._encoding.compressor(s, visit)) for s in self._given]
        self._plain = sum(t.numel() * t.itemsize for _, t, c in self._streams if c is None)
        self._coded = [(tensor, c) for _, tensor, c in self._streams if c is not None]
        self.is_plain = not self._coded
        """Whether receivers see the tensors unchanged, because no stream has a codec."""
        passes = self.is_plain and not self._encoding.bits_per_second
        self.untouched = self._plain if passes else None
        """The bytes of a message that is sent unchanged and takes no time; else ``None``."""

    def begin(self, shared: SharedState) -> None:
        """Make new compressors, as a resumed run would: none keeps state of an earlier stay in this
        phase. The number of steps so far gives each stay other random numbers."""
        if self._encoding.codec is not None:
            counts = (float(n.max()) for steps in shared.steps for n in steps if n.numel())
            self._start(int(max(counts, default=0.0)))

    def offer(self, weight: float, masks: Sequence[bytes | None]) -> int:
        """Send, and return the bytes. Without samples and gradients (``masks`` say which are used)
        nothing is sent, and the codec's residual waits for this worker's next step."""
        if weight == 0.0 and not any(mask is None or any(mask) for mask in masks):
            return 0
        return self.send()

    def send(self) -> int:
        """Turn the tensors into what the receivers see; return the bytes to send."""
        if self.untouched is not None:
            return self.untouched
        count = self._plain
        for tensor, compressor in self._coded:
            count += compressor.compress(tensor).nbytes
        self._encoding.take_time(count)
        return count

    def encode(self) -> list[Payload]:
        """Return the messages for a real wire, and turn the tensors into what the receivers see."""
        from phalanx.sync.codec.codec import Payload

        return [
            Payload((tensor,)) if compressor is None else compressor.compress(tensor)
            for _, tensor, compressor in self._streams
        ]

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
