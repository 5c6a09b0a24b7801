"""The messages between workers and the coordinator. Changes of memory follow them as raw bytes."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

COORDINATOR = "coordinator"
"""The name of the coordinator's listener, and the purpose of connections to it."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message of a process."""

    process: int
    processes: int
    machine: str
    address: str
    port: int
    """The port of this process's listener, for others that exchange data with it."""
    host: str
    """A text that is the same for all processes that can share memory with each other."""
    serves: bool = False
    """Whether this process keeps parameters and does not train."""


class TrainingMember(msgspec.Struct, frozen=True):
    rank: int
    """The member's rank among the workers, or among the servers."""
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
    """A name of this training, different from all others."""


class _Numbered(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    seq: int = 0
    """The number of the request, which its answer repeats."""
    runs: int = 0
    """How many pieces of memory have changed; the changes follow the message."""


class Meet(_Numbered, frozen=True, kw_only=True):
    """Ask to meet ``members`` at a barrier; an empty list means all workers."""

    members: list[int] = []
    digest: bytes = b""
    """A digest of the memory region that each member allocates here: it has to be the same."""
    forget: bool = False
    """Whether changes from before the barrier are no longer to be sent to its members."""


class Acquire(_Numbered, frozen=True, kw_only=True):
    lock: int
    blocking: bool


class Release(_Numbered, frozen=True, kw_only=True):
    lock: int


class Await(_Numbered, frozen=True):
    """Ask for an answer at once if there are new changes, else at the next ``Wake``."""


class Wake(_Numbered, frozen=True):
    """Have every open ``Await`` answered, because what it waits for may have changed."""


class Peek(_Numbered, frozen=True):
    """Ask for all new changes, at once."""


class Put(_Numbered, frozen=True, kw_only=True):
    key: str
    value: bytes


class Get(_Numbered, frozen=True, kw_only=True):
    """Ask for the value of a key, and wait until there is one."""

    key: str


class Ending(Enum):
    """How a process left."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    """The process was asked to stop, and so are the others."""
    VANISHED = "vanished"
    """The process left without a ``Bye``."""


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
    """The coordinator's time when it answered."""
    refused: str = ""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """Says that a process on which others rely is gone."""

    rank: int
    machine: str
    address: str
    serves: bool = False
    ending: Ending = Ending.VANISHED
    words: str = ""
    """The lost process's own error, if it sent one."""


Request = Meet | Acquire | Release | Await | Wake | Peek | Put | Get | Bye
Reply = Welcome | CoordinatorAnswer | Lost

RUN_BYTES = 16
"""Bytes that describe one run of memory: its place and its length, eight bytes each."""
MOST_RUNS = 1 << 20
"""Most pieces of memory that one message may change."""

request_decoder = msgspec.msgpack.Decoder(Hello | Request)
reply_decoder = msgspec.msgpack.Decoder(Reply)
encode = msgspec.msgpack.Encoder().encode
