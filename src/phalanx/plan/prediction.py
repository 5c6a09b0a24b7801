"""What a plan is expected to do, with intervals."""

from __future__ import annotations

import msgspec


class Interval(msgspec.Struct, frozen=True):
    """An expected value, and what it lies between."""

    low: float
    value: float
    high: float

    @staticmethod
    def around(value: float, error: float) -> Interval:
        """``error`` is a share of the value."""
        return Interval(value / (1.0 + error), value, value * (1.0 + error))


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train: machines, strategy, and what they come to."""

    machines: list[str]
    workers: int
    strategy: str
    """The strategy with its codec, as it is typed."""
    shares: list[float]
    """Shares of a batch, by worker."""
    servers: list[str] = []
    step: Interval
    """Seconds of one global batch."""
    samples_per_second: Interval
    seconds: Interval
    """Seconds of the whole run: start-up, training, evaluations, checkpoints."""
    joules: Interval | None = None
    energy_source: str = ""
    """``measured``, ``blueprint`` or ``estimate``."""
    price: Interval | None = None
    limit: str = ""
    """What it waits for most, in words: ``computing on m3``, ``the link of m1``, ``starting``."""
    same_mathematics: bool = True
