"""The messages between the prober and its workers: a line of JSON each.

The first line goes to a worker's standard input with the key; it answers with its port. Then it is
asked for one measurement at a time. No torch here: the command line reads this.
"""

from __future__ import annotations

import msgspec

from phalanx.pool.measured import DeviceRates

LARGEST = 64 << 20
"""Most bytes of a message that is measured."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say"):
    """A base of messages, each one line."""


class ProbeOrders(Message, frozen=True, tag="orders"):
    """Tells a worker where to listen, and how long to live at most."""

    key: str
    address: str
    tls: bool
    seconds: float


class ProbePeer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    address: str
    port: int


class MeasurePair(Message, frozen=True, tag="pair"):
    """Asks two machines to open a connection, measure it, and close it."""

    group: str
    rank: int
    peers: list[ProbePeer]
    seconds: float
    opening: float


class OpenMesh(Message, frozen=True, tag="mesh"):
    """Asks every machine to connect with all others, for collectives."""

    group: str
    rank: int
    peers: list[ProbePeer]
    opening: float


class MeasureMachine(Message, frozen=True, tag="machine"):
    """Asks what the machine is and how fast it computes; so many seconds for each figure."""

    seconds: float


class TimeCollective(Message, frozen=True, tag="collective"):
    name: str
    bytes: int
    repeats: int


class Ready(Message, frozen=True, tag="ready"):
    port: int


class ProbeDone(Message, frozen=True, tag="done"):
    """The answer of a worker that did its part, where another one has the figures."""


class PairFigures(Message, frozen=True, tag="figures"):
    """The latency in seconds one way, and the bytes per second to the other machine."""

    bandwidth: float
    latency: float
    handling: float = 0.0
    """Processor seconds for each byte that is sent or received here."""


class Timed(Message, frozen=True, tag="timed"):
    """The seconds of each repetition, without the barrier between them."""

    seconds: list[float]


class MachineFigures(Message, frozen=True, tag="machine_figures"):
    cores: int
    memory: int | None
    gpus: list[str]
    devices: list[DeviceRates]


class ProbeProblem(Message, frozen=True, tag="problem"):
    cause: str
    remedy: str = ""


Request = MeasureMachine | MeasurePair | OpenMesh | TimeCollective
Answer = Ready | ProbeDone | MachineFigures | PairFigures | Timed | ProbeProblem

encode = msgspec.json.encode
orders_decoder = msgspec.json.Decoder(ProbeOrders)
request_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
answer_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
