"""What the steps of profiled runs consist of: groups, operators and layers, runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from phalanx.core import words
from phalanx.observe.operators.operator_names import GROUPS, PHASES
from phalanx.observe.operators.profiles import OperatorTable, mean_by, read_profiles
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Plot, Section
from phalanx.report.tables import TableCell, TableRow

MOST = {"operators": 16, "layers": 10}
_NOTE = (
    "Milliseconds of a step, mean of the workers; with the share of the step, and the ratio to the "
    "first run. Python: nothing is computed, read or sent. Exposed exchange: something is "
    "sent or waited for, and nothing computed. Operators that run at once add up to more than a "
    "step."
)
Profiled = tuple[RunGroup, list[OperatorTable]]
"""A run with its repeats, and the tables of its workers."""
Values = Mapping[str, Sequence[float | None]]
"""Seconds of a step by name, a value for each run."""


View = tuple[str, list[str], list[TableRow]]
"""A table of runs with one global batch: its title, its columns, its rows."""


def profiled(study: StudyData) -> list[Profiled]:
    """Return the profiles of a study: of each group of repeats, the run that represents it."""
    found = [(group, read_profiles(group.shown.paths)) for group in study.groups]
    return [(group, tables) for group, tables in found if tables]


def operators(study: StudyData) -> Section | None:
    """Show groups, operators and layers of every profiled run."""
    found = profiled(study)
    if not found:
        return None
    from phalanx.report.plots.figures import GROUP_COLOURS, stacked_bars

    bars = {group.label: _milliseconds(tables) for group, tables in found}
    parts = [part for part in GROUP_COLOURS if any(part in bar for bar in bars.values())]
    caption = "What a step consists of. A bar longer than its step has operators that run at once."
    figure = stacked_bars(bars, GROUP_COLOURS, "milliseconds of a step, mean of workers", parts)
    plot = Plot("operators", caption, figure, wide=True)
    grids = [
        Grid((title, *columns), tuple((row.name, *row.cells) for row in rows))
        for title, columns, rows in operator_views(found)
    ]
    return Section("Operators", 420, lead=_NOTE, plots=(plot,), grids=tuple(grids))


def _milliseconds(tables: Sequence[OperatorTable]) -> dict[str, float]:
    found = mean_by(tables, "group")
    if tables[0].device == "cpu":  # a GPU computes while the script runs
        found["Python"] = fmean(table.python_seconds for table in tables)
    return {part: 1000 * seconds for part, seconds in found.items()}


def operator_views(found: Sequence[Profiled]) -> list[View]:
    """Return the tables: for each batch the step, then the operators, then the layers."""
    batches: dict[int | None, dict[str, list[OperatorTable]]] = {}
    for group, tables in found:
        name = group.label.replace(f", batch {group.batch}", "")
        batches.setdefault(group.batch, {})[name] = tables
    views = []
    for batch, runs in batches.items():
        workers = list(runs.values())
        parts = {"step in ms": _overview(workers)}
        for title, field in (("operators", "label"), ("layers", "layer")):
            values = _values([mean_by(tables, field) for tables in workers])
            longest = sorted(values, key=lambda name: -max(v or 0.0 for v in values[name]))
            parts[title] = _rows(workers, {name: values[name] for name in longest[: MOST[title]]})
        of = f", batch {batch}" if len(batches) > 1 and batch else ""
        made = ((title + of, list(rows)) for title, rows in parts.items())
        views += [(title, list(runs), rows) for title, rows in made if rows]
    return views


def _overview(runs: Sequence[list[OperatorTable]]) -> Iterator[TableRow]:
    def known(field: str) -> list[list[float]]:
        return [[v for table in tables if (v := getattr(table, field))] for tables in runs]

    def mean(field: str) -> list[float | None]:
        return [fmean(values) if values else 0.0 for values in known(field)]

    groups, phases = (_values([mean_by(tables, f) for tables in runs]) for f in ("group", "phase"))
    yield from _rows(runs, {
        "step": mean("step_seconds"),
        **{name: groups[name] for name in GROUPS if name in groups},
        "Python": mean("python_seconds"),
        "exposed exchange": mean("exposed_seconds"),
        **{f"in {name}": phases[name] for name in PHASES if name in phases},
    })  # fmt: skip
    for name, field, say in (
        ("memory peak", "memory_bytes", words.size),
        ("GPU memory peak", "device_memory_bytes", words.size),
        ("step profiled ÷ not", "cost", words.ratio),
    ):
        if any(found := known(field)):
            yield TableRow(name, tuple(TableCell(say(max(v, default=None))) for v in found))


def _values(found: Sequence[dict[str, float]]) -> Values:
    names = dict.fromkeys(name for one in found for name in one)
    return {name: [one.get(name) for one in found] for name in names}


def _rows(runs: Sequence[list[OperatorTable]], values: Values) -> Iterator[TableRow]:
    steps = [fmean(table.step_seconds for table in tables) for tables in runs]
    for name, found in values.items():
        bases = [None, *[found[0]] * (len(found) - 1)]
        yield TableRow(name, tuple(map(_cell, found, steps, bases)))


def _cell(value: float | None, step: float, base: float | None) -> TableCell:
    if value is None:
        return TableCell(words.UNKNOWN)
    times = value / base if base else 0.0
    ratio = f" ×{times:.2f}" if 0 < times < 9.995 else f" ×{times:.0f}" if times else ""
    taken = f"{1000 * value:.3g}" if value < 0.9995 else f"{1000 * value:,.0f}"
    return TableCell(taken, words.percent(100 * value / step) + ratio)
