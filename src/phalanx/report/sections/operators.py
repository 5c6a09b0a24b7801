"""What the steps of profiled runs consist of: groups, operators and layers, runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from phalanx.core import words
from phalanx.observe.operators.operator_names import BACKWARD, FORWARD, GROUPS
from phalanx.observe.operators.profiles import OperatorTable, mean_by, read_profiles
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Plot, Section

MOST = {"label": 16, "layer": 10}
_NOTE = (
    "Milliseconds of a step, mean of the workers, and the ratio to the first run. Python: nothing "
    "is computed, read or sent. Operators that run at once add up to more than a step."
)
Profiled = tuple[RunGroup, list[OperatorTable]]
"""A run with its repeats, and the tables of its workers."""


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
    return Section("Operators", 420, lead=_NOTE, plots=(plot,), grids=operator_grids(found))


def operator_grids(found: Sequence[Profiled]) -> tuple[Grid, ...]:
    """Return the tables: for each batch the step, then the operators, then the layers."""
    grids = []
    for batch in dict.fromkeys(group.batch for group, _ in found):
        of = f" in ms, batch {batch}" if batch else " in ms"
        columns = [group.label for group, _ in found if group.batch == batch]
        runs = [tables for group, tables in found if group.batch == batch]
        peaks = [words.size(max(table.memory_bytes for table in tables)) for tables in runs]
        rows = [*_rows([_overview(tables) for tables in runs]), ("memory peak", *peaks)]
        grids.append(Grid(("step" + of, *columns), tuple(rows)))
        for title, field in (("operators", "label"), ("layers", "layer")):
            rows = list(_rows([mean_by(tables, field) for tables in runs], MOST[field]))
            if rows:
                grids.append(Grid((title + of, *columns), tuple(rows)))
    return tuple(grids)


def _overview(tables: Sequence[OperatorTable]) -> dict[str, float]:
    groups, phases = mean_by(tables, "group"), mean_by(tables, "phase")
    found = {
        "step": fmean(table.step_seconds for table in tables),
        **{name: groups.get(name, 0.0) for name in GROUPS},
        "Python": fmean(table.python_seconds for table in tables),
        **{f"in {name}": phases.get(name, 0.0) for name in (FORWARD, BACKWARD)},
    }
    return {name: seconds for name, seconds in found.items() if seconds}


def _rows(
    runs: Sequence[Mapping[str, float]], most: int | None = None
) -> Iterator[tuple[str, ...]]:
    """Make a row of each name that a run has; with ``most``, of the ones that take longest."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    if most is not None:
        names.sort(key=lambda name: -max(run.get(name, 0.0) for run in runs))
    for name in names[:most]:
        base = runs[0].get(name)
        cells = [_cell(run.get(name), None if run is runs[0] else base) for run in runs]
        yield (words.short(name, 20), *cells)


def _cell(seconds: float | None, base: float | None) -> str:
    if seconds is None:
        return words.UNKNOWN
    taken = f"{1000 * seconds:.3g}" if seconds < 0.9995 else f"{1000 * seconds:,.0f}"
    return f"{taken}  ×{seconds / base:.2f}" if base else taken
