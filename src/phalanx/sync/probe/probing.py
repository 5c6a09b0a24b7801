"""Measures links: round trips, streams, and all-reduces between barriers."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from phalanx.sync.collective.collective import ALGORITHMS
from phalanx.sync.collective.links import Links

SMALL_MESSAGE = 8
WARM_UP = 3
FEWEST, MOST = 6, 1000
FIRST_STREAM, LARGEST_STREAM = 16 << 10, 16 << 20
LONG_ENOUGH = 0.03
"""Seconds of a message in which its slow start (a growing window, a full bucket) does not show."""
_SIZE = struct.Struct("<Q")
_FIGURE = struct.Struct("<d")
_LAST = 1

COLLECTIVES = {f"all_reduce.{name}": run for name, run in ALGORITHMS.items()}


def latency(links: Links, seconds: float) -> float:
    """Return half the median round trip of small messages; the first of two measures for both."""
    message = memoryview(bytearray(SMALL_MESSAGE))
    if links.rank == 1:
        while message[0] != _LAST:
            links.receive(0, message)
            links.send(0, message)
        links.receive(0, message)
        return float(_FIGURE.unpack(message)[0])
    trips: list[float] = []
    end = time.monotonic() + seconds
    while message[0] != _LAST:
        enough = len(trips) >= FEWEST and time.monotonic() >= end
        message[0] = _LAST if enough or len(trips) >= MOST else 0
        start = time.perf_counter()
        links.send(1, message)
        links.receive(1, message)
        trips.append(time.perf_counter() - start)
    half = median(trips[WARM_UP:]) / 2
    links.send(1, memoryview(_FIGURE.pack(half)))
    return half


@dataclass(frozen=True)
class Stream:
    """The figures of a stream, as one of its two participants saw it."""

    rate: float | None
    """Bytes per second; ``None`` at the receiver."""
    moved: int
    """Bytes that were moved."""
    processor: float
    """Processor seconds that this process took to move them."""


def stream(links: Links, sender: int, seconds: float, one_way: float) -> Stream:
    """Send a stream from ``sender`` to the other of two participants."""
    memory, began = memoryview(bytearray(FIRST_STREAM * 64)), time.process_time()
    if links.rank == sender:
        rate, moved = _send_stream(links, 1 - sender, memory, seconds, one_way)
        return Stream(rate, moved, time.process_time() - began)
    moved = _receive_stream(links, sender, memory)
    return Stream(None, moved, time.process_time() - began)


def _send_stream(
    links: Links, to: int, memory: memoryview, seconds: float, one_way: float
) -> tuple[float, int]:
    """Return bytes per second, as the sender sees it, and how many were sent.

    Messages grow until one takes long enough, or the next one would not be over in time; each is
    answered by a byte, so that what waits in the sender's kernel does not count as sent.
    """
    steady: list[float] = []
    size, end, moved = FIRST_STREAM, time.monotonic() + seconds, 0
    while True:
        start = time.perf_counter()
        links.swap([(to, (memoryview(_SIZE.pack(size)), *_pieces(memory, size)))], [])
        links.receive(to, memoryview(bytearray(1)))
        moved += size
        took = time.perf_counter() - start - 2 * one_way
        rate = size / max(took, 1e-9)
        if took < LONG_ENOUGH and size < LARGEST_STREAM:
            size *= 2
        else:
            steady.append(rate)
        if time.monotonic() + size / rate > end:
            break
    links.send(to, memoryview(_SIZE.pack(0)))
    return upper_quartile(steady or [rate]), moved


def upper_quartile(values: Sequence[float]) -> float:
    """Return the upper quartile of rates: busy machines only make a link look slower."""
    return sorted(values)[round(0.75 * (len(values) - 1))]


def _receive_stream(links: Links, frm: int, memory: memoryview) -> int:
    header, moved = memoryview(bytearray(_SIZE.size)), 0
    while True:
        links.receive(frm, header)
        (size,) = _SIZE.unpack(header)
        if not 0 < size <= LARGEST_STREAM:
            return moved
        moved += size
        for piece in _pieces(memory, size):
            links.receive(frm, piece)
        links.send(frm, header[:1])


def _pieces(memory: memoryview, size: int) -> list[memoryview]:
    """Return views of ``memory``, again and again, until they have ``size`` bytes."""
    whole, rest = divmod(size, len(memory))
    return [memory] * whole + ([memory[:rest]] if rest else [])


def barrier(links: Links) -> None:
    """A barrier: returns when all are here.

    By dissemination: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
    International Journal of Parallel Programming 17 (1988).
    """
    token, distance = memoryview(bytearray(1)), 1
    while distance < links.size:
        to, frm = (links.rank + distance) % links.size, (links.rank - distance) % links.size
        links.exchange(to, token, frm, token)
        distance *= 2


def time_collective(links: Links, name: str, count_bytes: int, repeats: int) -> list[float]:
    """Return the seconds of each repetition.

    From one barrier's end to the next one's, by one clock, less what barriers alone take: a
    participant that is done early does not end the measurement.
    """
    flat, operation = torch.zeros(-(-count_bytes // 4)), COLLECTIVES[name]
    barrier(links)
    operation(links, flat)  # the first one makes scratch memory and opens windows
    barriers = _periods(links, lambda: None, max(FEWEST, min(16, repeats)))
    periods = _periods(links, lambda: operation(links, flat), repeats)
    return [max(0.0, period - median(barriers)) for period in periods]


def _periods(links: Links, operation: Callable[[], None], count: int) -> list[float]:
    barrier(links)
    found, last = [], time.perf_counter()
    for _ in range(count):
        operation()
        barrier(links)
        now = time.perf_counter()
        found.append(now - last)
        last = now
    return found
