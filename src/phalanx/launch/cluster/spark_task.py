"""A barrier task of Spark as a seat: connects to the controller, and answers its questions.

MessagePack in both directions, over a connection that has proved the run's key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from phalanx.core.errors import MachineLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.launch.cluster.node import own_address
from phalanx.launch.cluster.seat import WorkerSeat
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.handshake import Introduction

METHODS = ("look", "port", "start", "poll", "piece", "files", "signal", "clean")


def sit(
    rows: Iterator[int], *, address: str, port: int, tls: bool, key: str, folder: str, mark: str
) -> Iterator[int]:
    """The function that ``mapPartitions`` calls; the controller listens at ``address``."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    rank = context.partitionId()

    def make() -> WorkerSeat:
        own = own_address(context.getTaskInfos()[rank].address)
        gpus = context.resources().get("gpu")
        device = f"cuda:{gpus.addresses[0]}" if gpus else "cpu"
        return WorkerSeat(rank, own, folder, mark, context.cpus(), device)

    introduction = Introduction("seat", rank, 0)
    serve(connect(address, port, RunKey.from_text(key), introduction, tls=tls), make)
    yield from ()


def serve(channel: Channel, make: Callable[[], WorkerSeat]) -> None:
    """Answer the controller until it closes the connection, and leave nothing of the seat."""
    seat: WorkerSeat | None = None
    try:
        while True:
            method, given = receive(channel)
            if method not in METHODS:
                return
            try:
                seat = seat or make()
                send(channel, ("", getattr(seat, method)(*given)))
            except MachineLost:
                raise
            except Exception as error:
                send(channel, (f"{type(error).__name__}: {error}", None))
    except MachineLost:
        return
    finally:
        if seat is not None:
            seat.end()
        channel.close()


def send(channel: Channel, message: tuple[Any, ...]) -> None:
    channel.send(b"", msgspec.msgpack.encode(message))


def receive(channel: Channel) -> Any:
    _, size = channel.receive()
    data = bytearray(size)
    channel.receive_into(memoryview(data))
    return msgspec.msgpack.decode(data)
