"""What a page draws: charts and timelines, as plain values that are sent as JSON.

Figures that are unknown or no numbers are ``None`` (null). Times are seconds since the run began.
"""

from __future__ import annotations

import msgspec


class Axis(msgspec.Struct, frozen=True):
    name: str
    unit: str


class Series(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a chart; ``low`` and ``high`` are the band around it, where there is one."""

    name: str
    values: list[float | None]
    rank: int | None = None
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Chart(msgspec.Struct, frozen=True):
    """Series over one axis. All have as many values as ``x_values``."""

    name: str
    title: str
    unit: str
    x: Axis
    x_values: list[float]
    series: list[Series]
    log: bool = False
    """Whether a logarithmic scale makes sense."""


class TimeSpan(msgspec.Struct, frozen=True):
    """A stretch of a worker's time: a part of one step, or of all steps in a short time."""

    start: float
    end: float
    kind: str
    step: int | None = None
    """The number of the step, counted from 1 on its worker."""


class RankSpans(msgspec.Struct, frozen=True):
    rank: int
    machine: str
    spans: list[TimeSpan]


class Timeline(msgspec.Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """What each worker did between two moments."""

    first: float
    last: float
    ranks: list[RankSpans]
    kinds: list[str]
    exact: bool = False
    """Whether the spans are those of real steps."""
