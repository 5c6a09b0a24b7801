"""The messages between the parameter store and its clients: typed headers, with limits.

A model's numbers follow a header as raw bytes. Their size is known from what ``Open`` declared, so
that a message of another size is refused before any of it is read.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from phalanx.core.errors import PhalanxError

STORE = "store"
"""The purpose of connections to a server."""

Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Name = Annotated[str, Meta(max_length=200)]
Rank = Annotated[int, Meta(ge=0, le=1 << 20)]
Option = bool | int | float | Name | None | Annotated[list[float], Meta(max_length=8)]
Options = Annotated[dict[Name, Option], Meta(max_length=64)]
Groups = Annotated[list[Options], Meta(max_length=4096)]
Used = Annotated[list[bytes | None], Meta(max_length=16)]
"""Whether each piece has a gradient, per layout, a byte for each; ``None``: all of them have."""


class PieceOf(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a parameter: its length, its group, and how it lies in the parameter's rows."""

    size: Annotated[int, Meta(ge=1, le=1 << 40)]
    group: Annotated[int, Meta(ge=0, le=4096)]
    columns: Annotated[int, Meta(ge=1, le=1 << 40)]
    offset: Count


class LayoutOf(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a server keeps of one flat layout."""

    dtype: Name
    pieces: Annotated[list[PieceOf], Meta(max_length=1 << 17)]


class Description(Struct, frozen=True, forbid_unknown_fields=True):
    """One server's share of an optimizer: no code, only names and numbers."""

    optimizer: Name
    first_values: Options
    groups: Groups
    layouts: Annotated[list[LayoutOf], Meta(max_length=16)]
    codecs: Annotated[list[Name], Meta(max_length=16)]


class TensorOf(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One buffer of an encoded gradient."""

    dtype: Name
    shape: Annotated[list[Count], Meta(max_length=4)]


class Encoded(Struct, frozen=True, forbid_unknown_fields=True):
    """Which of the store's codecs was used, and per layout the buffers of the message."""

    codec: Annotated[int, Meta(ge=0, le=15)]
    layouts: Annotated[list[Annotated[list[TensorOf], Meta(max_length=4096)]], Meta(max_length=16)]


class _Request(Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    store: Name


class Open(_Request, frozen=True):
    """Opens a store. The first request makes the store; all others must describe the same."""

    description: Description
    client: Name = ""
    ranks: Annotated[list[Rank], Meta(max_length=4096)] = []
    """Ranks of the workers behind this connection: steps that need them fail if it is lost."""


class Load(_Request, frozen=True):
    """Announces parameters, slots and counts, which follow."""


class Save(_Request, frozen=True):
    """Asks for what ``Load`` brings."""


class Push(_Request, frozen=True):
    """Announces a gradient, which is applied once. ``reply``: send the new parameters."""

    groups: Groups
    used: Used
    rate_factor: float = 1.0
    encoded: Encoded | None = None
    reply: bool = True
    rank: Annotated[int, Meta(ge=-1, le=1 << 20)] = -1
    """The worker that pushes; ``total``: how many samples it had been given by then."""
    total: Count = 0


class Fence(_Request, frozen=True):
    """Asks how far a lost worker's pushes have come; its later pushes are refused."""

    rank: Rank


class Pull(_Request, frozen=True):
    have: int = -1


class Contribute(_Request, frozen=True):
    """Announces a share of a step, which is taken when all of ``expected`` have given theirs.

    With ``norm`` the answer is the squared norm of this server's share of the mean gradient, and
    the step is taken when ``Commit`` brings the factor; ``clip`` is for the only server of a store.
    """

    step: Annotated[int, Meta(ge=0)]
    expected: Annotated[list[Rank], Meta(min_length=1, max_length=4096)]
    rank: Rank
    weight: float
    groups: Groups
    used: Used
    clip: float | None = None
    norm: bool = False
    encoded: Encoded | None = None
    empty: bool = False


class Commit(_Request, frozen=True):
    step: Annotated[int, Meta(ge=0)]
    factor: float


class Drop(_Request, frozen=True):
    """Says that the store is not needed any more."""


class _Answer(Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    pass


class Opened(_Answer, frozen=True):
    slots: list[Name]


class StoreDone(_Answer, frozen=True):
    """Answers a request; the shard's version was ``before``, and is ``version`` now.

    Parameters, or the whole state, follow if they were requested.
    """

    before: int
    version: int
    waited: float = 0.0
    updated: float = 0.0


class Fenced(_Answer, frozen=True):
    """Answers ``Fence``: the ``total`` of that worker's last push that was applied."""

    total: int


class Squares(_Answer, frozen=True):
    value: float


class Failed(_Answer, frozen=True):
    """Says that a request failed. ``lost``: the reason is that another client is lost."""

    cause: Annotated[str, Meta(max_length=2000)]
    remedy: Annotated[str, Meta(max_length=2000)] = ""
    lost: bool = False


Request = Open | Load | Save | Push | Fence | Pull | Contribute | Commit | Drop
Answer = Opened | StoreDone | Fenced | Squares | Failed

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class StoreRefused(PhalanxError):  # noqa: N818  (what happened, not what went wrong here)
    """A request does not fit the store; its connection is ended."""


def pack(message: Request | Answer) -> bytes:
    return _encoder.encode(message)


def read_request(header: bytes) -> Request:
    try:
        return _requests.decode(header)
    except msgspec.DecodeError as error:
        raise StoreRefused(f"invalid request to a parameter store ({error})") from None


def read_answer(header: bytes) -> Answer:
    try:
        return _answers.decode(header)
    except msgspec.DecodeError as error:
        raise StoreRefused(f"invalid answer of a parameter store ({error})") from None
