"""What the steps of profiled runs consist of: groups, operators and layers, runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.core import words
from phalanx.observe.operators.operator_names import GROUPS, PHASES
from phalanx.observe.operators.profiles import RunProfile, profile_of, read_profiles
from phalanx.report.load import StudyData
from phalanx.report.sections import Grid, Plot, Section
from phalanx.report.tables import TableCell, TableRow

MOST_OPERATORS, MOST_LAYERS = 16, 10
_NOTE = (
    "Seconds of a step, mean of the workers; below them the share of the step, and the ratio to "
    "the first run. Python: nothing is computed, read or sent. Exposed: something is sent or "
    "waited for, and nothing computed. Operators that run side by side add up to more than a step."
)
Profiled = tuple[str, RunProfile]
"""The label of a run, and its profile."""


@dataclass(frozen=True)
class OperatorGrid:
    """A table of runs with one global batch."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]


def profiled(study: StudyData) -> list[Profiled]:
    """Return the profiles of a study: of each group of repeats, the run that represents it."""
    found = ((group.label, read_profiles(group.shown.paths)) for group in study.groups)
    return [(label, profile_of(tables)) for label, tables in found if tables]


def operators(study: StudyData) -> Section | None:
    """Show groups, operators and layers of every profiled run."""
    found = profiled(study)
    if not found:
        return None
    from phalanx.report.plots.figures import operator_bars

    bars = [(label, _parts(profile)) for label, profile in found]
    caption = "What a step consists of. Bars longer than a step have operators that run at once."
    tables = operator_tables(found)
    grids = tuple(
        Grid((table.title, *table.columns), tuple((row.name, *row.cells) for row in table.rows))
        for table in tables
    )
    plot = Plot("operators", caption, operator_bars(bars), wide=True)
    return Section("Operators", 420, lead=_NOTE, plots=(plot,), grids=grids)


def _parts(profile: RunProfile) -> dict[str, float]:
    on_cpu = {"Python": profile.python_seconds} if profile.device == "cpu" else {}
    return {**profile.groups, **on_cpu}


def operator_tables(found: Sequence[Profiled]) -> list[OperatorGrid]:
    """Return the tables: for each batch the groups, then the operators, then the layers."""
    batches: dict[str, list[Profiled]] = {}
    for label, profile in found:
        name, comma, batch = label.partition(", batch ")
        batches.setdefault(comma + batch, []).append((name, profile))
    tables = []
    for batch, runs in batches.items():
        columns, profiles = tuple(name for name, _ in runs), [profile for _, profile in runs]
        parts = (("groups", _groups), ("operators", _operators), ("layers", _layers))
        for title, rows in parts:
            if lines := tuple(rows(profiles)):
                tables.append(OperatorGrid(title + batch, columns, lines))
    return tables


def _groups(profiles: Sequence[RunProfile]) -> Iterator[TableRow]:
    steps = [profile.step_seconds for profile in profiles]
    cells = (_cell(step, None, steps[0]) for step in steps)
    yield TableRow("step", tuple(cells))
    for group in GROUPS:
        yield from _row(group, profiles, [p.groups.get(group) for p in profiles])
    yield from _row("Python", profiles, [p.python_seconds for p in profiles])
    yield from _row("exposed communication", profiles, [p.exposed_seconds for p in profiles])
    for phase in PHASES:
        yield from _row(f"phase {phase}", profiles, [p.phases.get(phase) for p in profiles])
    yield TableRow("memory peak", tuple(TableCell(_memory(profile)) for profile in profiles))
    costs = (words.ratio(profile.cost) for profile in profiles)
    yield TableRow("step profiled ÷ not", tuple(map(TableCell, costs)))


def _memory(profile: RunProfile) -> str:
    peak, device = profile.memory_bytes, profile.device_memory_bytes
    return words.size(peak) + (f", GPU {words.size(device)}" if device else "")


def _operators(profiles: Sequence[RunProfile]) -> Iterator[TableRow]:
    for name in _top([profile.operators for profile in profiles], MOST_OPERATORS):
        yield from _row(name, profiles, [p.operators.get(name) for p in profiles])


def _layers(profiles: Sequence[RunProfile]) -> Iterator[TableRow]:
    for name in _top([profile.layers for profile in profiles], MOST_LAYERS):
        yield from _row(name, profiles, [p.layers.get(name) for p in profiles])


def _top(tables: Sequence[dict[str, float]], most: int) -> list[str]:
    names = dict.fromkeys(name for table in tables for name in table)
    return sorted(names, key=lambda name: -max(table.get(name, 0.0) for table in tables))[:most]


def _row(
    name: str, profiles: Sequence[RunProfile], values: Sequence[float | None]
) -> Iterator[TableRow]:
    """Yield a row, unless it says nothing."""
    if any(values):
        pairs = zip(values, profiles, strict=True)
        cells = (_cell(value, profile.step_seconds, values[0]) for value, profile in pairs)
        yield TableRow(name, tuple(cells))


def _cell(value: float | None, step: float | None, first: float | None) -> TableCell:
    if value is None:
        return TableCell(words.UNKNOWN)
    share = [words.percent(100 * value / step)] if step else []
    ratio = [f"× {words.ratio(value / first)}"] if first else []
    return TableCell(words.seconds(value), " · ".join([*share, *ratio]))
