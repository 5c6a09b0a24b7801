"""``python -m phalanx.sync.probe.probe_worker``: one machine's part in a probe of links.

It reads orders as lines of JSON from its standard input, which keeps the key out of process
lists, and answers by lines on its standard output. It ends when its input ends, whatever it is
doing, and at the latest when its time is over.
"""

from __future__ import annotations

import os
import queue
import sys
import threading

import msgspec

from phalanx.core.errors import PhalanxError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.collective.links import Links, open_links
from phalanx.sync.connect.dispatcher import Credentials
from phalanx.sync.probe import probe_compute, probing
from phalanx.sync.probe import probe_messages as m

LATENCY_SHARE = 0.3
"""The share of a pair's time in which latency is measured; in the rest, the rate each way."""


class ProbeParticipant:
    """Answers requests; it keeps the mesh for collectives, while each pair opens new links."""

    def __init__(self, access: Credentials) -> None:
        self._access = access
        self._mesh: Links | None = None

    def answer(self, request: m.Request) -> m.Answer:
        """Measure what is asked; raises ``PhalanxError`` when a peer is lost."""
        if isinstance(request, m.MeasureMachine):
            return probe_compute.measure_machine(request.seconds)
        if isinstance(request, m.MeasurePair):
            return self._measure_pair(request)
        if isinstance(request, m.OpenMesh):
            if self._mesh is not None:
                self._mesh.close()
            self._mesh = self._open(request)
            return m.ProbeDone()
        return self._time(request)

    def _measure_pair(self, request: m.MeasurePair) -> m.Answer:
        links = self._open(request)
        try:
            half = probing.latency(links, request.seconds * LATENCY_SHARE)
            each = request.seconds * (1 - LATENCY_SHARE) / 2
            streams = [probing.stream(links, sender, each, half) for sender in (0, 1)]
        finally:
            links.close()
        moved = sum(stream.moved for stream in streams)
        handling = sum(stream.processor for stream in streams) / max(moved, 1)
        return m.PairFigures(streams[request.rank].rate or 0.0, half, handling)

    def _time(self, request: m.TimeCollective) -> m.Answer:
        if self._mesh is None or request.name not in probing.COLLECTIVES:
            return m.ProbeProblem(f"unknown measurement '{request.name}'", "Update Phalanx there.")
        count = min(request.bytes, m.LARGEST)
        return m.Timed(probing.time_collective(self._mesh, request.name, count, request.repeats))

    def _open(self, request: m.MeasurePair | m.OpenMesh) -> Links:
        return open_links(
            request.rank,
            [(peer.address, peer.port) for peer in request.peers],
            self._access,
            request.group,
            timeout=request.opening,
            names=[peer.name for peer in request.peers],
        )


LINE_LIMIT = 1 << 20
BAD_ORDERS = 2


def main() -> int:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(lines,), daemon=True).start()
    try:
        orders = m.orders_decoder.decode(lines.get())
        key = RunKey.from_text(orders.key)
    except (msgspec.MsgspecError, PhalanxError):
        print("the first line of standard input has to be orders", file=sys.stderr)
        return BAD_ORDERS
    limit = threading.Timer(orders.seconds, os._exit, (1,))
    limit.daemon = True
    limit.start()
    try:
        _serve(orders, key, lines)
    except PhalanxError as error:
        _say(m.ProbeProblem(error.cause, error.remedy))
    except msgspec.MsgspecError:
        print("a line of standard input is no request", file=sys.stderr)
        return BAD_ORDERS
    return 0


def _serve(orders: m.ProbeOrders, key: RunKey, lines: queue.SimpleQueue[bytes]) -> None:
    import torch

    from phalanx.sync.connect.dispatcher import Credentials, Dispatcher
    from phalanx.sync.connect.listener import Listener

    torch.set_num_threads(1)
    listener = Listener(orders.address, key, tls=orders.tls)
    access = Credentials(key, orders.address, Dispatcher(listener), orders.tls)
    part = ProbeParticipant(access)
    _say(m.Ready(listener.port))
    while True:
        request = m.request_decoder.decode(lines.get())
        try:
            _say(part.answer(request))
        except PhalanxError as error:
            _say(m.ProbeProblem(error.cause, error.remedy))


def _read_input(lines: queue.SimpleQueue[bytes]) -> None:
    """Queue lines of input; at its end the starter has gone, so this process exits."""
    while line := sys.stdin.buffer.readline(LINE_LIMIT):
        lines.put(line)
    os._exit(0)


def _say(answer: m.Answer) -> None:
    sys.stdout.buffer.write(m.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # an orderly exit would wait for the thread that still reads input
