"""What the steps of profiled runs consist of: groups, operators and layers, runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from phalanx.core import words
from phalanx.observe.operators.operator_names import BACKWARD, FORWARD, GROUPS
from phalanx.observe.operators.profiles import OperatorTable, mean_by, read_profiles
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Plot, Section
from phalanx.report.tables import TableCell, TableRow

MOST = {"label": 16, "layer": 10}
_NOTE = (
    "Milliseconds of a step, mean of the workers, and the ratio to the first run. Python: nothing "
    "is computed, read or sent. Operators that run at once add up to more than a step."
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
        group.label: {name: 1000 * seconds for name, seconds in _overview(tables).items()}
        for group, tables in found
    }
    caption = "What a step consists of. A bar longer than its step has parts that run at once."
    figure = stacked_bars(bars, GROUP_COLOURS, "milliseconds of a step, mean of workers")
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
        rows = list(_rows([_overview(tables) for tables in workers]))
        peaks = [max(table.memory_bytes for table in tables) for tables in workers]
        rows.append(TableRow("memory peak", tuple(TableCell(words.size(peak)) for peak in peaks)))
        views.append((f"step in ms{of}", list(runs), rows))
        for title, field in (("operators", "label"), ("layers", "layer")):
            rows = list(_rows([mean_by(tables, field) for tables in workers], MOST[field]))
            if rows:
                views.append((f"{title} in ms{of}", list(runs), rows))
    return views


def _overview(tables: Sequence[OperatorTable]) -> dict[str, float]:
    groups, phases = mean_by(tables, "group"), mean_by(tables, "phase")
    found = {
        "step": fmean(table.step_seconds for table in tables),
        **{name: groups.get(name, 0.0) for name in GROUPS},
        "Python": fmean(table.python_seconds for table in tables),
        **{f"in {name}": phases.get(name, 0.0) for name in (FORWARD, BACKWARD)},
    }
    return {name: seconds for name, seconds in found.items() if seconds}


def _rows(runs: Sequence[Mapping[str, float]], most: int | None = None) -> Iterator[TableRow]:
    """Make a row of each name that a run has; with ``most``, of the ones that take longest."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    if most is not None:
        names.sort(key=lambda name: -max(run.get(name, 0.0) for run in runs))
    for name in names[:most]:
        base = runs[0].get(name)
        cells = [_cell(run.get(name), None if run is runs[0] else base) for run in runs]
        yield TableRow(words.short(name, 24), tuple(cells))


def _cell(seconds: float | None, base: float | None) -> TableCell:
    if seconds is None:
        return TableCell(words.UNKNOWN)
    taken = f"{1000 * seconds:.3g}" if seconds < 0.9995 else f"{1000 * seconds:,.0f}"
    return TableCell(f"{taken}  ×{seconds / base:.2f}" if base else taken)
