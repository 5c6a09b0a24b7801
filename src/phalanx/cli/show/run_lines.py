"""The lines of ``phalanx runs``: no wider than the terminal, with ids never cut, to be copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from phalanx.core.terminal import printable
from phalanx.core.words import clock, share

STYLES = {"done": "green", "running": "cyan", "stopped": "yellow", "failed": "red", "lost": "red"}
HEADER = ("run", "status", "strategy", "workers", "elapsed", "accuracy")


def run_lines(rows: Sequence[dict[str, Any]], room: int) -> Iterator[Text]:
    """Yield a line for each run; if that is too wide, each id is on a line above the rest."""
    table = [HEADER, *map(_cells, rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    above = sum(widths) + len(widths) - 1 > room
    if above:
        widths[0] = 1
    yield _line(("" if above else HEADER[0], *HEADER[1:]), widths, "dim")
    for row, cells in zip(rows, table[1:], strict=True):
        if above:
            yield Text(cells[0])
        shown = ("", *cells[1:]) if above else cells
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


def _line(cells: Sequence[str], widths: Sequence[int], style: str, status_style: str = "") -> Text:
    padding = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    run, status, strategy = (cells[i] + padding[i] for i in range(3))
    numbers = " ".join(padding[i] + cells[i] for i in range(3, len(cells)))
    rest = f" {strategy} {numbers}".rstrip()
    return Text.assemble(f"{run} ", (status, status_style), rest, style=style)
