"""The table of a study: one column per strategy, as in published comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.core import words
from phalanx.core.settings import OURS, mark
from phalanx.core.terminal import printable
from phalanx.observe.summary.summary import Summary
from phalanx.report.agreement import Agreement, agreements, are_systems, reference_for
from phalanx.report.load import Getter, RunGroup, Spread, StudyData, train_seconds
from phalanx.report.noise import Difference, judge_quality, judge_times
from phalanx.report.quality import CANDIDATES, Quality

BASELINES = ("single", "allreduce")


@dataclass(frozen=True)
class TableCell:
    text: str
    note: str = ""
    """The range over the repeats, or another remark below the text."""
    best: bool = False


@dataclass(frozen=True)
class TableRow:
    """One quantity, a cell per group."""

    name: str
    cells: tuple[TableCell, ...]


def table_lines(study: StudyData) -> list[TableRow]:
    """Return a row for each quantity that is known of these runs."""
    groups = study.groups
    lines = [*_settings(study), *_qualities(groups)]
    found = agreements(groups)
    if are_systems(groups):
        lines.append(TableRow("losses", tuple(TableCell(_agreed(one)) for one in found)))
    times = _line("training time", groups, train_seconds, words.seconds)
    fair = [agreement.comparable for agreement in found]
    lines.append(_mark(times, groups, train_seconds, judge_times, lower=True, among=fair))
    lines.append(_line("elapsed in all", groups, lambda s: s.seconds, words.seconds))
    lines.append(_line("samples/s", groups, lambda s: s.samples_per_second, words.count))
    lines += _ratios_of_systems(groups, found) if are_systems(groups) else _ratios(groups)
    lines.append(_line("time waiting", groups, wait_share, words.rough_share))
    lines.append(_sent(groups))
    return [line for line in lines if any(cell.text != words.UNKNOWN for cell in line.cells)]


def _ratios(groups: Sequence[RunGroup]) -> Iterator[TableRow]:
    for name in BASELINES:
        others = [group for group in groups if not _is_baseline(group, name)]
        if len(others) < len(groups) and others:
            ratios = (ratio_to_baseline(group, groups, name) for group in groups)
            yield TableRow(
                f"time ÷ {name}", tuple(TableCell(words.ratio(ratio)) for ratio in ratios)
            )


def _agreed(agreement: Agreement) -> str:
    return words.UNKNOWN if agreement is Agreement.UNKNOWN else agreement.value


def _ratios_of_systems(
    groups: Sequence[RunGroup], found: Sequence[Agreement]
) -> Iterator[TableRow]:
    """Yield time ratios to Phalanx's first run with the same batch; none if the losses differ."""
    cells, bases = [], set[str]()
    for group, agreement in zip(groups, found, strict=True):
        base = reference_for(group, groups)
        own = base.spread(train_seconds) if base else None
        spread = group.spread(train_seconds) if agreement.comparable else None
        if base is None or own is None or own.middle <= 0:
            cells.append(TableCell(words.UNKNOWN))
            continue
        bases.add(base.label)
        ratio = words.ratio(spread.middle / own.middle) if spread else _agreed(agreement)
        cells.append(TableCell(ratio))
    if bases:
        name = bases.pop() if len(bases) == 1 else f"{OURS}, same batch"
        yield TableRow(f"time ÷ {name}", tuple(cells))


def _sent(groups: Sequence[RunGroup]) -> TableRow:
    """Return the bytes that a worker sends in a step; with a codec also as a share without it."""
    line = _line("sent per step", groups, lambda s: s.bytes_per_step, words.size)
    cells = []
    for group, cell in zip(groups, line.cells, strict=True):
        part = _part_of_plain(group, groups)
        note = f"{words.percent(100 * part)} of uncompressed" if part else cell.note
        cells.append(TableCell(cell.text, note))
    return TableRow(line.name, tuple(cells))


def _part_of_plain(group: RunGroup, groups: Sequence[RunGroup]) -> float | None:
    plain = uncoded(group.strategy)
    alike = [
        g for g in groups if g.strategy == plain != group.strategy and g.workers == group.workers
    ]
    own, other = (g.spread(lambda s: s.bytes_per_step) for g in (group, (alike or [group])[0]))
    return own.middle / other.middle if alike and own and other and other.middle else None


def uncoded(strategy: str) -> str:
    """Return the same strategy without its codecs."""
    return re.sub(r"\+[^@/]*", "", strategy)


def _settings(study: StudyData) -> Iterator[TableRow]:
    groups = study.groups
    if not all(run.done for run in study.runs):
        yield TableRow("status", tuple(TableCell(_status(group)) for group in groups))
    yield TableRow("workers", tuple(TableCell(words.count(group.workers)) for group in groups))
    yield TableRow("global batch", tuple(TableCell(words.count(group.batch)) for group in groups))
    yield _line("epochs", groups, lambda s: s.epochs, words.count)
    if any(group.emulated for group in groups):
        name = next(mark(g.emulated) for g in groups if g.emulated) or ""
        yield TableRow(name, tuple(TableCell(group.emulated or "no") for group in groups))


def _status(group: RunGroup) -> str:
    states = [run.summary.status for run in group.runs]
    if len(states) == 1 or len(set(states)) == 1:
        return states[0]
    return f"{len(group.done)} of {len(states)} done"


def _qualities(groups: Sequence[RunGroup]) -> Iterator[TableRow]:
    order = sorted(CANDIDATES, key=lambda name: ("loss" in name, not name.startswith("train")))
    for name in order:
        quality = Quality(name)
        line = _line(quality.name, groups, quality.get, quality.number)

        def judge(a: Spread, b: Spread, quality: Quality = quality) -> Difference:
            return judge_quality(a, b, quality)

        trained = name.startswith("train")
        lower = not quality.higher_is_better
        yield line if trained else _mark(line, groups, quality.get, judge, lower=lower)
    names = dict.fromkeys(n for g in groups for run in g.runs for n in run.summary.metrics)
    for name in names:
        yield _line(name, groups, _metric(name), lambda value: f"{value:.4g}")


def _metric(name: str) -> Getter:
    return lambda summary: summary.metrics.get(name)


def _line(
    name: str, groups: Sequence[RunGroup], get: Getter, say: Callable[[float], str]
) -> TableRow:
    return TableRow(name, tuple(_cell(group.spread(get), say) for group in groups))


def _cell(spread: Spread | None, say: Callable[[float], str]) -> TableCell:
    if spread is None:
        return TableCell(words.UNKNOWN)
    text = say(spread.middle)
    if len(spread.values) == 1 or say(spread.low) == say(spread.high):
        return TableCell(text)
    return TableCell(text, words.span(say(spread.low), say(spread.high)))


def _mark(
    line: TableRow,
    groups: Sequence[RunGroup],
    get: Getter,
    judge: Callable[[Spread, Spread], Difference],
    *,
    lower: bool,
    among: Sequence[bool] | None = None,
) -> TableRow:
    """Mark the best cells: that of the best value, and those equal to it within noise.

    Nothing is marked if that would be all cells. ``among``: which groups take part.
    """
    asked = among or [True] * len(groups)
    pairs = zip(groups, asked, strict=True)
    spreads = [group.spread(get) if group.done and fair else None for group, fair in pairs]
    known = [spread for spread in spreads if spread]
    if len(known) < 2:
        return line
    front = (min if lower else max)(known, key=lambda spread: spread.middle)
    best = [s is not None and (s is front or judge(front, s) is Difference.NOISE) for s in spreads]
    if sum(best) == len(known):
        return line
    marked = zip(line.cells, best, strict=True)
    return TableRow(
        line.name, tuple(TableCell(cell.text, cell.note, mark) for cell, mark in marked)
    )


def _is_baseline(group: RunGroup, name: str) -> bool:
    return group.strategy == name and bool(group.done)


def ratio_to_baseline(
    group: RunGroup, groups: Sequence[RunGroup], name: str = "allreduce"
) -> float | None:
    """Return training time as a multiple of the baseline's, with the same batch if that was run."""
    bases = [other for other in groups if _is_baseline(other, name)]
    same_batch = [base for base in bases if base.batch == group.batch]
    same = [base for base in same_batch if base.workers == group.workers] or same_batch or bases
    own = group.spread(train_seconds) if group.done else None
    base = same[0].spread(train_seconds) if same else None
    return own.middle / base.middle if own and base and base.middle > 0 else None


def wait_share(summary: Summary) -> float | None:
    """Return the part of the steps' time that workers spent waiting for each other."""
    time = summary.time
    parts = (time.input, time.compute, time.communicate, time.wait, time.update)
    known = [part for part in parts if part is not None]
    total = sum(known)
    return time.wait / total if time.wait is not None and total > 0 else None


def print_table(study: StudyData, console: Console) -> None:
    print_rows([group.label for group in study.groups], table_lines(study), console)


def print_rows(labels: list[str], lines: list[TableRow], console: Console, head: str = "") -> None:
    """Print a table, in as many blocks as its columns need in the console's width."""
    for block in _blocks(labels, lines, console.width):
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(head)
        for index in block:
            table.add_column(Text(printable(labels[index])), justify="right")
        for line in lines:
            cells = [line.cells[index] for index in block]
            values = (Text(printable(c.text), style="bold green" if c.best else "") for c in cells)
            table.add_row(Text(printable(line.name), style="dim"), *values)
            if any(cell.note for cell in cells):
                table.add_row("", *(Text(cell.note, style="dim") for cell in cells))
        console.print(table)


def _blocks(labels: list[str], lines: list[TableRow], width: int) -> Iterator[list[int]]:
    """Yield the columns in blocks, each of as many as fit."""
    name_width = max((len(line.name) for line in lines), default=0) + 2
    block: list[int] = []
    used = name_width
    for index, label in enumerate(labels):
        cells = (line.cells[index] for line in lines)
        texts = [label, *(text for cell in cells for text in (cell.text, cell.note))]
        needed = max(len(text) for text in texts) + 2
        if block and used + needed > width:
            yield block
            block, used = [], name_width
        block.append(index)
        used += needed
    if block:
        yield block
