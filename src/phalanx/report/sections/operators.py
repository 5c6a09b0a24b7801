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

MOST = {"label": 16, "layer": 10}
_NOTE = (
    "Milliseconds of a step, mean of the workers; with the share of the step, and the ratio to the "
    "first run. Python: nothing is computed, read or sent. Exposed exchange: something is "
    "sent or waited for, and nothing computed. Operators that run at once add up to more than a "
    "step."
)
Profiled = tuple[RunGroup, list[OperatorTable]]
"""A run with its repeats, and the tables of its workers."""
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

    bars = {
        group.label: {name: 1000 * (value or 0.0) for name, value in _overview(tables).items()}
        for group, tables in found
    }
    parts = [part for part in GROUP_COLOURS if any(bar[part] for bar in bars.values())]
    caption = "What a step consists of. A bar longer than its step has parts that run at once."
    figure = stacked_bars(bars, GROUP_COLOURS, "milliseconds of a step, mean of workers", parts)
    plot = Plot("operators", caption, figure, wide=True)
    grids = [
        Grid((title, *columns), tuple((row.name, *row.cells) for row in rows))
        for title, columns, rows in operator_views(found)
    ]
    return Section("Operators", 420, lead=_NOTE, plots=(plot,), grids=tuple(grids))


def operator_views(found: Sequence[Profiled]) -> list[View]:
    """Return the tables: for each batch the step, then the operators, then the layers."""
    views = []
    for batch in dict.fromkeys(group.batch for group, _ in found):
        of = f", batch {batch}" if batch else ""
        runs = {group.label.replace(of, ""): t for group, t in found if group.batch == batch}
        workers = list(runs.values())
        rows = [*_rows(workers, [_overview(tables) for tables in workers]), *_memory(workers)]
        views.append((f"step in ms{of}", list(runs), rows))
        for title, field in (("operators", "label"), ("layers", "layer")):
            rows = list(_rows(workers, [mean_by(tables, field) for tables in workers], MOST[field]))
            if rows:
                views.append((title + of, list(runs), rows))
    return views


def _overview(tables: Sequence[OperatorTable]) -> dict[str, float | None]:
    groups, phases = mean_by(tables, "group"), mean_by(tables, "phase")
    return {
        "step": fmean(table.step_seconds for table in tables),
        **{name: groups.get(name) for name in GROUPS},
        "Python": fmean(table.python_seconds for table in tables),
        "exposed exchange": fmean(table.exposed_seconds for table in tables),
        **{f"in {name}": phases.get(name) for name in PHASES},
    }


def _rows(
    runs: Sequence[list[OperatorTable]],
    found: Sequence[Mapping[str, float | None]],
    most: int | None = None,
) -> Iterator[TableRow]:
    """Make a row of each name that a run has; with ``most``, of the ones that take longest."""
    names = dict.fromkeys(name for one in found for name in one)
    values = {name: [one.get(name) for one in found] for name in names}
    if most is not None:
        longest = sorted(values, key=lambda name: -max(v or 0.0 for v in values[name]))
        values = {name: values[name] for name in longest[:most]}
    steps = [fmean(table.step_seconds for table in tables) for tables in runs]
    for name, taken in values.items():
        if any(value is not None for value in taken):
            bases = [None, *[taken[0]] * (len(taken) - 1)]
            yield TableRow(name, tuple(map(_cell, taken, steps, bases)))


def _memory(runs: Sequence[list[OperatorTable]]) -> Iterator[TableRow]:
    for name, field in (("memory peak", "memory_bytes"), ("GPU memory", "device_memory_bytes")):
        peaks = [max(getattr(table, field) for table in tables) for tables in runs]
        if any(peaks):
            yield TableRow(name, tuple(TableCell(words.size(peak)) for peak in peaks))


def _cell(value: float | None, step: float, base: float | None) -> TableCell:
    if value is None:
        return TableCell(words.UNKNOWN)
    times = value / base if base else 0.0
    ratio = f" ×{times:.2f}" if 0 < times < 9.995 else f" ×{times:.0f}" if times else ""
    taken = f"{1000 * value:.3g}" if value < 0.9995 else f"{1000 * value:,.0f}"
    return TableCell(taken, words.percent(100 * value / step) + ratio)
