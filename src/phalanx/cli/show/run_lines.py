"""The lines of ``phalanx runs``: no wider than the terminal, and every id whole, to be copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from phalanx.core.terminal import printable
from phalanx.core.words import clock, share

STYLES = {"done": "green", "running": "cyan", "stopped": "yellow", "failed": "red", "lost": "red"}
HEADER = ("run", "status", "strategy", "workers", "elapsed", "accuracy")
RUN, STATUS, STRATEGY = range(3)


def run_lines(rows: Sequence[dict[str, Any]], room: int) -> Iterator[Text]:
    """A line for each run; where there is no room for all of it, the id stands above the rest."""
    table = [HEADER, *map(_cells, rows)]
    widths = _widths(table, room)
    yield _line(HEADER, widths, "dim")
    for row, cells in zip(rows, table[1:], strict=True):
        fits = _fits(cells, widths[RUN], widths[STRATEGY])
        if not fits:
            yield Text(cells[RUN])
        shown = cells if fits else ("", *cells[STATUS:])
        yield _line(shown, widths, "", STYLES.get(row["status"], "dim"))
        if row["resumes"]:
            yield Text(f"  resumed from {printable(row['resumes'])}", style="dim")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        printable(row["run"]),
        printable(row["status"]),
        printable(row["strategy"] or ""),
        "" if row["workers"] is None else str(row["workers"]),
        "" if row["seconds"] is None else clock(row["seconds"]),
        "" if row["test_accuracy"] is None else share(row["test_accuracy"]),
    )


def _widths(table: Sequence[tuple[str, ...]], room: int) -> list[int]:
    """Widths of the columns; ids and strategies share what the others leave, so that most fit."""
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    others = sum(widths) - widths[RUN] - widths[STRATEGY] + len(widths) - 1
    if widths[RUN] + widths[STRATEGY] <= room - others:
        return widths

    def fitting(strategy: int) -> int:
        return sum(_fits(cells, room - others - strategy, strategy) for cells in table)

    lengths = {max(cell_len(cells[STRATEGY]), len(HEADER[STRATEGY])) for cells in table}
    strategy = max(sorted(lengths, reverse=True), key=fitting)
    fits = [cell_len(c[RUN]) for c in table if _fits(c, room - others - strategy, strategy)]
    widths[RUN], widths[STRATEGY] = max(fits, default=len(HEADER[RUN])), strategy
    return widths


def _fits(cells: Sequence[str], run: int, strategy: int) -> bool:
    return cell_len(cells[RUN]) <= run and cell_len(cells[STRATEGY]) <= strategy


def _line(cells: Sequence[str], widths: Sequence[int], style: str, status_style: str = "") -> Text:
    run, status, strategy, *numbers = cells
    excess = max(0, cell_len(strategy) - widths[STRATEGY])
    ends = [number.rjust(width) for number, width in zip(numbers, widths[3:], strict=True)]
    return Text.assemble(
        _padded(run, widths[RUN] - excess) + " ",
        (_padded(status, widths[STATUS]), status_style),
        f" {_padded(strategy, widths[STRATEGY])} {' '.join(ends)}".rstrip(),
        style=style,
    )


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
