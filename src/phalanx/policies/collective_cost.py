"""What a collective costs: time = latency · rounds + overhead · messages + bytes ÷ bandwidth.

The model of a message is latency + size ÷ bandwidth; rounds wait for each other, and bytes are
those of the busiest link in one direction. Messages sent at once share the latency, but each takes
its sender some time (system calls, waking up the other side).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

MESSAGE_SECONDS = 20e-6
"""Handling of one message, sender and receiver together, by Python and the kernel."""


@dataclass(frozen=True)
class LinkSpeed:
    """Seconds to the other side, bytes per second in each direction."""

    latency: float
    bandwidth: float
    overhead: float = MESSAGE_SECONDS

    @classmethod
    def measured(cls, latency: float, bandwidth: float) -> LinkSpeed:
        """Half a round trip contains the handling of one message, which formulas count apart."""
        overhead = min(MESSAGE_SECONDS, latency / 2)
        return cls(latency - overhead, bandwidth, overhead)


@dataclass(frozen=True)
class Cost:
    """What the slowest participant has to do."""

    rounds: int
    messages: int
    bytes: float

    def seconds(self, link: LinkSpeed) -> float:
        return (
            link.latency * self.rounds + link.overhead * self.messages + self.bytes / link.bandwidth
        )


def _levels(n: int) -> int:
    return ceil(log2(n)) if n > 1 else 0


def _direct(n: int, count: float) -> Cost:
    if n <= 2:
        return Cost(n - 1, n - 1, count * (n - 1))
    return Cost(2, 2 * (n - 1), 2 * count * (n - 1) / n)


def _ring(n: int, count: float) -> Cost:
    return Cost(2 * (n - 1), 2 * (n - 1), 2 * count * (n - 1) / n)


def _tree(n: int, count: float) -> Cost:
    return Cost(2 * _levels(n), 2 * _levels(n), 2 * count * _levels(n))


def _butterfly(n: int, count: float) -> Cost:
    """A number that is no power of two costs two rounds before and one after."""
    acting = 1 << (n.bit_length() - 1)
    extra = 3 if n > acting else 0
    rounds = 2 * _levels(acting) + extra
    moved = 2 * count * (acting - 1) / acting + (2 * count if extra else 0.0)
    return Cost(rounds, rounds, moved)


def _all_gather_direct(n: int, count: float) -> Cost:
    """``count`` is one participant's payload; headers go first."""
    return Cost(min(2, 2 * (n - 1)), 2 * (n - 1), count * (n - 1))


def _all_gather_ring(n: int, count: float) -> Cost:
    return Cost(2 * (n - 1), 2 * (n - 1), count * (n - 1))


ALL_REDUCE: dict[str, Callable[[int, float], Cost]] = {
    "direct": _direct,
    "ring": _ring,
    "tree": _tree,
    "butterfly": _butterfly,
}

COSTS: dict[str, Callable[[int, float], Cost]] = {
    "all_gather": _all_gather_direct,
    "all_gather.ring": _all_gather_ring,
    **{f"all_reduce.{name}": cost for name, cost in ALL_REDUCE.items()},
}
"""The cost of each collective, by name and topology: ``COSTS[name](size, count_bytes)``."""
