"""Runs side by side: a series of each run in every chart, and their figures in a table."""

from __future__ import annotations

import csv
import io
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from phalanx.watch.feed.chart_types import Chart, Series
from phalanx.watch.feed.runs_list import RunRow

CHARTS = ("loss", "evaluation", "evaluation_loss", "throughput", "rate", "gradient_norm")
_PREFERRED = ("test accuracy", "validation accuracy", "train accuracy", "total", "all")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins so for a formula."""


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    charts: list[Chart]
    rows: list[RunRow]


def make_comparison(
    titles: Sequence[str], charts: Sequence[Sequence[Chart]], rows: list[RunRow]
) -> RunComparison:
    """Put the charts of several runs together, by name."""
    names, found = _names(titles), [{chart.name: chart for chart in own} for own in charts]
    together = [one for name in CHARTS if (one := _together(name, names, found)) is not None]
    return RunComparison(charts=together, rows=rows)


def _names(titles: Sequence[str]) -> list[str]:
    """Number those that are called the same."""
    return [
        f"{title} ({titles[: place + 1].count(title)})" if titles.count(title) > 1 else title
        for place, title in enumerate(titles)
    ]


def _together(name: str, names: Sequence[str], found: Sequence[dict[str, Chart]]) -> Chart | None:
    own = [
        (title, charts[name]) for title, charts in zip(names, found, strict=True) if name in charts
    ]
    if not own:
        return None
    xs = sorted({x for _, chart in own for x in chart.x_values})
    series = [
        Series(title, _at(xs, chart.x_values, one.values))
        for title, chart in own
        if (one := _main(chart)) is not None
    ]
    first = own[0][1]
    return Chart(name, first.title, first.unit, first.x, xs, series, log=first.log)


def _main(chart: Chart) -> Series | None:
    """Return the series that stands for the whole run."""
    by_name = {series.name: series for series in chart.series if series.rank is None}
    chosen = next((by_name[name] for name in _PREFERRED if name in by_name), None)
    return chosen or next(iter(by_name.values()), None) or next(iter(chart.series), None)


def _at(
    xs: Sequence[float], own: Sequence[float], values: Sequence[float | None]
) -> list[float | None]:
    """Return the line through ``values`` at the moments ``xs``; nothing before and after it."""
    known = [(x, value) for x, value in zip(own, values, strict=False) if value is not None]
    places = [x for x, _ in known]
    found: list[float | None] = []
    for x in xs:
        at = bisect_left(places, x)
        if at < len(known) and places[at] == x:
            found.append(known[at][1])
        elif 0 < at < len(known):
            (left, low), (right, high) = known[at - 1], known[at]
            found.append(low + (high - low) * (x - left) / (right - left))
        else:
            found.append(None)
    return found


def csv_of(chart: Chart) -> str:
    """Return a chart as comma separated values, a column a series."""
    text = io.StringIO()
    write = csv.writer(text).writerow
    columns: list[tuple[str, Sequence[float | None]]] = []
    for series in chart.series:
        columns.append((series.name, series.values))
        columns += [
            (f"{series.name} {end}", values)
            for end, values in (("low", series.low), ("high", series.high))
            if values
        ]
    unit = f" ({chart.x.unit})" if chart.x.unit else ""
    write([f"{chart.x.name}{unit}", *(_as_text(name) for name, _ in columns)])
    for place, x in enumerate(chart.x_values):
        cells = [values[place] if place < len(values) else None for _, values in columns]
        write([repr(x), *("" if cell is None else repr(cell) for cell in cells)])
    return text.getvalue()


def _as_text(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name
