"""What the steps of profiled runs consist of: groups, operators and layers, runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.core import words
from phalanx.observe.operators.operator_names import GROUPS, PHASES
from phalanx.observe.operators.profiles import RunProfile, profile_of, read_profiles
from phalanx.report.load import StudyData
from phalanx.report.sections import Grid, Plot, Section
from phalanx.report.tables import TableCell

MOST_OPERATORS, MOST_LAYERS = 16, 10
_NAME, _SIDE_BY_SIDE = 23, 3
"""Letters of a row's name, and runs beside it, in 80 columns."""
_NOTE = (
    "Milliseconds of a step, mean of the workers; with the share of the step, and the ratio to the "
    "first run. Python: nothing is computed, read or sent. Exposed communication: something is "
    "sent or waited for, and nothing computed. Operators that run at once add up to more than a "
    "step."
)
Profiled = tuple[str, RunProfile]
"""The label of a run, and its profile."""
Values = dict[str, list[float | None]]
"""Seconds of a step by name, a value for each run."""


@dataclass(frozen=True)
class Measure:
    """One quantity of one run."""

    text: str
    share: str = ""
    ratio: str = ""

    def cell(self) -> TableCell:
        return TableCell(self.text, " · ".join(filter(None, (self.share, self.ratio))))

    def line(self) -> str:
        return f"{self.text:>7}{self.share:>6}{self.ratio:>6}"


ViewRow = tuple[str, tuple[Measure, ...]]


@dataclass(frozen=True)
class OperatorView:
    """A table of runs with one global batch."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[ViewRow, ...]

    def grid(self) -> Grid:
        rows = ((name, *(one.cell() for one in row)) for name, row in self.rows)
        return Grid((self.title, *self.columns), tuple(rows))

    def blocks(self) -> Iterator[list[str]]:
        """Yield lines for a terminal, the heading first, in blocks of as many runs as fit."""
        for at in range(0, len(self.columns), _SIDE_BY_SIDE):
            block = slice(at, at + _SIDE_BY_SIDE)
            heads = (f"{words.short(name, 18):>19}" for name in self.columns[block])
            lines = [f"{self.title:<{_NAME}}{''.join(heads)}"]
            for name, row in self.rows:
                shown = "".join(one.line() for one in row[block])
                lines.append(f"{words.short(name, _NAME - 1):<{_NAME}}{shown}".rstrip())
            yield lines


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
    caption = "What a step consists of. A bar longer than its step has operators that run at once."
    grids = tuple(table.grid() for table in operator_tables(found))
    plot = Plot("operators", caption, operator_bars(bars), wide=True)
    return Section("Operators", 420, lead=_NOTE, plots=(plot,), grids=grids)


def _parts(profile: RunProfile) -> dict[str, float]:
    on_cpu = {"Python": profile.python_seconds} if profile.device == "cpu" else {}
    return {**profile.groups, **on_cpu}


def operator_tables(found: Sequence[Profiled]) -> list[OperatorView]:
    """Return the tables: for each batch the step, then the operators, then the layers."""
    batches: dict[str, list[Profiled]] = {}
    for label, profile in found:
        name, comma, batch = label.partition(", batch ")
        batches.setdefault(comma + batch, []).append((name, profile))
    views = []
    for batch, runs in batches.items():
        columns, profiles = tuple(name for name, _ in runs), [profile for _, profile in runs]
        tops = {
            "operators": _top([p.operators for p in profiles], MOST_OPERATORS),
            "layers": _top([p.layers for p in profiles], MOST_LAYERS),
        }
        parts = {"step": _overview(profiles)}
        parts |= {title: _rows(profiles, found) for title, found in tops.items()}
        made = ((title, tuple(rows)) for title, rows in parts.items())
        views += [OperatorView(f"{title} (ms){batch}", columns, rows) for title, rows in made if rows]
    return views


def _overview(profiles: Sequence[RunProfile]) -> Iterator[ViewRow]:
    yield from _rows(profiles, {"step": [p.step_seconds for p in profiles]})
    yield from _rows(profiles, {n: [p.groups.get(n) for p in profiles] for n in GROUPS})
    yield from _rows(profiles, {"Python": [p.python_seconds for p in profiles]})
    exposed = [p.exposed_seconds for p in profiles]
    yield from _rows(profiles, {"exposed communication": exposed})
    yield from _rows(profiles, {f"in {n}": [p.phases.get(n) for p in profiles] for n in PHASES})
    yield "memory peak", tuple(Measure(words.size(p.memory_bytes)) for p in profiles)
    if any(p.device_memory_bytes for p in profiles):
        yield "GPU memory peak", tuple(Measure(words.size(p.device_memory_bytes)) for p in profiles)
    yield "step profiled ÷ not", tuple(Measure(words.ratio(p.cost)) for p in profiles)


def _top(tables: Sequence[dict[str, float]], most: int) -> Values:
    names = dict.fromkeys(name for table in tables for name in table)
    longest = sorted(names, key=lambda name: -max(table.get(name, 0.0) for table in tables))
    return {name: [table.get(name) for table in tables] for name in longest[:most]}


def _rows(profiles: Sequence[RunProfile], found: Values) -> Iterator[ViewRow]:
    """Yield a row for each name of which anything is known."""
    for name, values in found.items():
        bases = [None, *[values[0]] * (len(values) - 1)]
        given = zip(values, (p.step_seconds for p in profiles), bases, strict=True)
        if any(values):
            yield name, tuple(_measure(value, step, base) for value, step, base in given)


def _measure(value: float | None, step: float, base: float | None) -> Measure:
    if value is None:
        return Measure(words.UNKNOWN)
    took = 1000 * value
    shown = f"{took:,.0f}" if took >= 99.95 else f"{took:.3g}" if took >= 0.01 else f"{took:.1g}"
    ratio = f"×{words.ratio(value / base)}" if base else ""
    return Measure(shown, words.percent(100 * value / step), ratio)
