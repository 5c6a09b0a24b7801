"""Writes and reads frames between controller and agent, with limits and checked types."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec

from phalanx.agent.frames import LENGTHS, MOST_HEADER, MOST_PAYLOAD
from phalanx.core.errors import MachineError

T = TypeVar("T")
_headers = msgspec.json.Decoder(dict[str, Any])


class WrongAgentFrame(Exception):  # noqa: N818  (what came)
    """The bytes received are not a frame that an agent sends."""


class AgentFrame(msgspec.Struct, frozen=True):
    """The kind of a frame: the answer to a request, a problem with it, or a notice."""

    answer: int | None = None
    problem: int | None = None
    tell: str | None = None


class FileChunk(msgspec.Struct, frozen=True):
    """Bytes that were appended to a file of the run."""

    file: str
    offset: int


class Exited(msgspec.Struct, frozen=True):
    """The end of a worker; the code is minus the signal's number if it was killed."""

    rank: int
    code: Annotated[int, msgspec.Meta(ge=-255, le=255)]


class Ports(msgspec.Struct, frozen=True):
    """Unused ports of a machine."""

    ports: list[Annotated[int, msgspec.Meta(ge=1, le=65535)]]


class Pong(msgspec.Struct, frozen=True):
    """The answer to a ping: when it was sent, by our clock, and arrived, by the machine's."""

    sent: float
    mine: float


class AgentProblem(msgspec.Struct, frozen=True):
    """The reason why a request was not answered."""

    cause: str
    remedy: str = ""


def read_as(kind: type[T], fields: dict[str, Any]) -> T:
    """Convert ``fields`` to ``kind``, with checks, because a machine may send anything."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise WrongAgentFrame(str(error)) from None


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    words = msgspec.json.encode(header)
    if len(words) > MOST_HEADER or len(payload) > MOST_PAYLOAD:
        raise ValueError("a request is too large for one frame")
    return LENGTHS.pack(len(words), len(payload)) + words + payload


async def unpack(read: Callable[[int], Awaitable[bytes]]) -> tuple[dict[str, Any], bytes]:
    """Read the next frame; ``read`` returns exactly as many bytes as it is asked for."""
    header_length, payload_length = LENGTHS.unpack(await read(LENGTHS.size))
    if header_length > MOST_HEADER or payload_length > MOST_PAYLOAD:
        raise WrongAgentFrame("a frame is too long")
    try:
        header = _headers.decode(await read(header_length))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WrongAgentFrame(str(error)) from None
    return header, await read(payload_length)


Reply = tuple[dict[str, Any], bytes]
Taker = Callable[[str, dict[str, Any], bytes], bool]
"""A function that is offered what the agent sends unasked; returns whether it took it."""


class AgentRefused(MachineError):  # noqa: N818  (what was answered)
    """The agent refused a request, for the reason in this error."""


def fail(waiting: asyncio.Future[Reply] | None, error: MachineError) -> None:
    """End the wait for an answer with ``error``, unless nothing waits for it any more."""
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)


class AgentListener:
    """Callbacks for what a link notices unasked; each does nothing until overridden."""

    def on_tell(self, name: str, fields: dict[str, Any], payload: bytes) -> None:
        """The agent sent something that is not an answer."""

    def on_lost(self, error: MachineError) -> None:
        """The agent is lost; not called while the link is being closed."""

    def on_gap(self, seconds: float) -> None:
        """This computer did not run for ``seconds``: it slept, or this command was stopped."""

    def say(self, text: str) -> None:
        """A request takes long; ``text`` tells the user what is waited for."""
