"""The predicted speed, time, energy and price of a way to train, as intervals."""

from __future__ import annotations

import msgspec


class Interval(msgspec.Struct, frozen=True):
    """An expected value with its lower and upper bound."""

    low: float
    value: float
    high: float

    @staticmethod
    def around(value: float, error: float) -> Interval:
        """Return an interval around ``value``; ``error`` is a share of ``value``."""
        return Interval(value / (1.0 + error), value, value * (1.0 + error))


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train: its machines and strategy, and its predicted figures."""

    machines: list[str]
    workers: int
    strategy: str
    """The strategy with its codec, as a user types it."""
    shares: list[float]
    """The share of a batch that each worker computes."""
    servers: list[str] = []
    step: Interval
    """Seconds of one global batch."""
    samples_per_second: Interval
    seconds: Interval
    """Seconds of the whole run: start-up, training, evaluations, checkpoints."""
    joules: Interval | None = None
    energy_source: str = ""
    """The source of the machines' power: ``measured``, ``blueprint`` or ``estimate``."""
    price: Interval | None = None
    limit: str = ""
    """What the run waits for most: ``computing on m3``, ``the link of m1``, ``starting``."""
