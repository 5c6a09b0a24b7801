"""What workers and the coordinator say to each other. Changes of memory follow as raw bytes."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

COORDINATOR = "coordinator"
"""The name of the coordinator's listener, and the purpose of connections to it."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first word of a process."""

    process: int
    processes: int
    machine: str
    address: str
    port: int
    """Port of its listener, for others who exchange data with it."""
    host: str
    """An identifier that processes share which can share memory."""
    serves: bool = False
    """This process keeps parameters and does not train."""


class TrainingMember(msgspec.Struct, frozen=True):
    rank: int
    """Among the workers, or among the servers."""
    machine: str
    address: str
    port: int
    host: str


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The answer to ``Hello`` once every process is there."""

    rank: int
    workers: list[TrainingMember]
    servers: list[TrainingMember]
    run: str
    """A word of this training's own."""


class _Numbered(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    seq: int = 0
    """The number of the request, which its answer repeats."""
    runs: int = 0
    """How many pieces of memory have changed; the changes follow."""


class Meet(_Numbered, frozen=True, kw_only=True):
    """A barrier of ``members``; all workers when there are none."""

    members: list[int] = []
    digest: bytes = b""
    """Tells the memory that is asked for here: all have to ask for the same."""
    forget: bool = False
    """Whether to forget what was written before."""


class Acquire(_Numbered, frozen=True, kw_only=True):
    lock: int
    blocking: bool


class Release(_Numbered, frozen=True, kw_only=True):
    lock: int


class Await(_Numbered, frozen=True):
    """Answer at once if there is something new, or when somebody wakes."""


class Wake(_Numbered, frozen=True):
    """Something that others may wait for has changed."""


class Peek(_Numbered, frozen=True):
    """Answer at once with what is new."""


class Put(_Numbered, frozen=True, kw_only=True):
    key: str
    value: bytes


class Get(_Numbered, frozen=True, kw_only=True):
    """Answered when there is such a key."""

    key: str


class Ending(Enum):
    """How a process left."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    """The process was asked to stop, and so are the others."""
    VANISHED = "vanished"
    """The process left without a word."""


class Bye(_Numbered, frozen=True, kw_only=True):
    ending: Ending = Ending.FINISHED
    words: Annotated[str, msgspec.Meta(max_length=400)] = ""
    """The error, if something went wrong."""


UNLIKE = "the workers built different models"


class CoordinatorAnswer(msgspec.Struct, frozen=True, tag=True):
    seq: int
    runs: int = 0
    granted: bool = True
    value: bytes = b""
    time: float = 0.0
    """The coordinator's time."""
    refused: str = ""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A process is gone, and others count on it."""

    rank: int
    machine: str
    address: str
    serves: bool = False
    ending: Ending = Ending.VANISHED
    words: str = ""
    """The lost process's own words, if it had any."""


Request = Meet | Acquire | Release | Await | Wake | Peek | Put | Get | Bye
Reply = Welcome | CoordinatorAnswer | Lost

RUN_BYTES = 16
"""Bytes that describe one run of memory: its place and its length, eight each."""
MOST_RUNS = 1 << 20
"""Pieces of memory that one message may change."""

request_decoder = msgspec.msgpack.Decoder(Hello | Request)
reply_decoder = msgspec.msgpack.Decoder(Reply)
encode = msgspec.msgpack.Encoder().encode
