"""Messages whose sizes the receiver does not know: first a typed header, then buffers.

Both sides first swap one block of :data:`BLOCK` bytes that holds the header when it is short, so
that an ordinary message costs one more round; a longer header follows in a round of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from phalanx.core.errors import PeerLost

BLOCK = 512
MAX_HEADER = 1 << 20
MAX_PAYLOAD = 1 << 32
"""Most bytes of a message: enough for a gradient, and a broken header cannot ask for more."""

_LENGTH = 4
_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class TensorHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Describes one tensor of a message."""

    dtype: str
    shape: tuple[int, ...]

    def nbytes(self) -> int:
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize

    def empty(self) -> Tensor:
        return torch.empty(self.shape, dtype=_DTYPES[self.dtype])


_decoder = msgspec.msgpack.Decoder(list[TensorHeader])


def encode_header(tensors: Sequence[Tensor]) -> tuple[bytes, bytes]:
    """Return the first block, and the rest of the header where it does not fit there."""
    header = msgspec.msgpack.encode(
        [TensorHeader(_NAMES[t.dtype], tuple(t.shape)) for t in tensors]
    )
    if len(header) > MAX_HEADER:
        raise ValueError(f"a message of {len(tensors)} tensors is too long to announce")
    room = BLOCK - _LENGTH
    block = len(header).to_bytes(_LENGTH, "little") + header[:room]
    return block.ljust(BLOCK, b"\0"), header[room:]


def rest_length(block: bytes | bytearray, peer: str) -> int:
    """Return how many bytes of the header follow the first block."""
    length = int.from_bytes(block[:_LENGTH], "little")
    if length > MAX_HEADER:
        raise PeerLost(f"{peer} announced a header of {length} bytes, which is not a valid message")
    return max(0, length - (BLOCK - _LENGTH))


def make_room(header: bytes | bytearray, peer: str, limit: int = MAX_PAYLOAD) -> list[Tensor]:
    """Make empty tensors for the message that ``header`` (block and rest) announces."""
    length = int.from_bytes(header[:_LENGTH], "little")
    try:
        headers = _decoder.decode(header[_LENGTH : _LENGTH + length])
    except msgspec.MsgspecError as error:
        raise PeerLost(f"{peer} sent a header that cannot be read ({error})") from None
    for one in headers:
        if one.dtype not in _DTYPES or len(one.shape) > 8 or min(one.shape, default=0) < 0:
            raise PeerLost(f"{peer} announced a tensor of type {one.dtype!r:.20}, which is unknown")
    total = sum(one.nbytes() for one in headers)
    if total > limit:
        raise PeerLost(f"{peer} announced {total} bytes; the most a message may have is {limit}")
    return [one.empty() for one in headers]
