"""The parameter store over loopback TCP: push + pull of 32 MB, beside bare sockets and gRPC.

``python -m benchmarks store-wire [--rounds N]``. All three move the same bytes between two
processes: 32 MB there, 32 MB back. Without an update the store only receives, counts a version and
answers.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch

from benchmarks.harness import alternate, report, spread
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.arena.clock import MonotonicClock
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.state.replica import Masks, Replica
from phalanx.sync.store.remote.store_client import StoreClient
from phalanx.sync.store.remote.store_messages import STORE
from phalanx.sync.store.remote.store_process import ServerProcess
from phalanx.sync.strategy import Timing

LOOPBACK = "127.0.0.1"
SIZE = 32 << 20
REPEATS = 5
"""Exchanges of a block."""


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks store-wire")
    parser.add_argument("--rounds", type=int, default=15)
    measure(parser.parse_args(words).rounds)


def measure(rounds: int) -> None:
    torch.set_num_threads(1)
    key = RunKey.new()
    with ServerProcess(key, LOOPBACK) as server, _Peer("bare") as bare, _Peer("grpc") as grpc:
        store = _Client(server.port, key)
        blocks: dict[str, Callable[[], float]] = {
            "the store": _timed(store.without_update),
            "bare sockets": _timed(bare_exchange(bare.port)),
            "the store with an SGD update": _timed(store.with_update),
        }
        if grpc.port:
            blocks["gRPC"] = _timed(grpc_exchange(grpc.port))
        found = alternate(blocks, rounds)
    _report(found)


def _report(found: dict[str, list[float]]) -> None:
    for name, seconds in found.items():
        speeds = [2 * SIZE / second / 1e9 for second in seconds]
        report(f"push + pull of 32 MB over loopback, {name}, GB/s", **spread(speeds))
    ours = found["the store"]
    for name, bar in (("bare sockets", 0.8), ("gRPC", 2)):
        if name in found:
            ratios = [theirs / mine for mine, theirs in zip(ours, found[name], strict=True)]
            figure = f"push + pull of 32 MB: times as fast as {name}"
            report(figure, bar=f">= {bar}", **spread(ratios))
        else:
            report("gRPC is not installed", remedy="pip install grpcio, or the extra 'bench'")


def _timed(exchange: Callable[[], None]) -> Callable[[], float]:
    def block() -> float:
        began = time.perf_counter()
        for _ in range(REPEATS):
            exchange()
        return (time.perf_counter() - began) / REPEATS

    return block


class _Client:
    """A worker with one parameter of 32 MB."""

    def __init__(self, port: int, key: RunKey) -> None:
        optimizer = torch.optim.SGD([torch.zeros(SIZE // 4).requires_grad_()], lr=0.1)
        layouts = Replica(optimizer, shards=1).layouts
        self._client = StoreClient(
            [connect(LOOPBACK, port, key, Introduction(STORE))],
            [threading.Lock()],
            "bench",
            optimizer,
            layouts,
            MonotonicClock(),
        )
        self._client.open("bench", [0])
        self._gradients, self._parameters = [torch.ones(SIZE // 4)], [torch.zeros(SIZE // 4)]

    def without_update(self) -> None:
        """Nothing is used in this step, so that the optimizer passes over it."""
        self._push([b"\0"])

    def with_update(self) -> None:
        self._push([None])

    def _push(self, used: Masks) -> None:
        self._client.push(self._gradients, used, 1.0, Timing(), self._parameters)


class _Peer:
    """``python -m benchmarks.store_wire KIND``: a process that answers with as many bytes."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.store_wire", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        """0: it cannot run here."""

    def __enter__(self) -> _Peer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()


def bare_exchange(port: int) -> Callable[[], None]:
    connection = socket.create_connection((LOOPBACK, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    outgoing, incoming = bytearray(SIZE), bytearray(SIZE)

    def exchange() -> None:
        connection.sendall(outgoing)
        _fill(connection, memoryview(incoming))

    return exchange


def _fill(connection: socket.socket, view: memoryview) -> bool:
    while len(view):
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def serve_bare() -> None:
    listener = socket.create_server((LOOPBACK, 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming, outgoing = bytearray(SIZE), bytearray(SIZE)
    while _fill(connection, memoryview(incoming)):
        connection.sendall(outgoing)


GRPC_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
METHOD = "/bench.Store/Exchange"


def grpc_exchange(port: int) -> Callable[[], None]:
    import grpc

    channel = grpc.insecure_channel(f"{LOOPBACK}:{port}", options=GRPC_OPTIONS)
    call = channel.unary_unary(METHOD)
    outgoing = bytes(SIZE)

    def exchange() -> None:
        assert len(call(outgoing)) == SIZE

    return exchange


def serve_grpc() -> None:
    try:
        import grpc
    except ImportError:
        print(0, flush=True)
        return
    from concurrent.futures import ThreadPoolExecutor

    answer = bytes(SIZE)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
    server = grpc.server(ThreadPoolExecutor(2), options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Store", {"Exchange": handler}),)
    )
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(0)


if __name__ == "__main__":
    {"bare": serve_bare, "grpc": serve_grpc}[sys.argv[1]]()
