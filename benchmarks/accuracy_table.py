"""The runs of the accuracy tables, as Markdown and as figures with bars."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from benchmarks.accuracy_plan import Table, Wanted
from benchmarks.harness import report
from benchmarks.whole_runs import Results

Rows = dict[str, list[dict[str, Any]]]
HEADINGS = (
    "strategy",
    "test accuracy, %",
    "least – most",
    "against `allreduce`, points",
    "seeds",
    "bytes sent",
)
BARS = (
    ("fashion-mlp", "switch:at=0.5", "allreduce"),
    ("mnist-mlp-codecs", "allreduce+int8", "allreduce"),
)
"""Table, strategy, and the one that it may be 0.3 points behind of."""


def print_tables(wanted: Wanted, results: Results) -> None:
    for table in wanted.tables():
        for line in lines(table, wanted, _rows(table, wanted, results)):
            print(line)
        print(flush=True)


def lines(table: Table, wanted: Wanted, rows: Rows) -> Iterator[str]:
    epochs, first = wanted.epochs or table.epochs, rows.get("allreduce") or []
    yield f"**{table.title}; {epochs} epochs, {wanted.workers} workers**"
    yield ""
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|---" * len(HEADINGS) + "|"
    for strategy in table.strategies:
        yield _line(strategy, rows.get(strategy) or [], first)


def _line(strategy: str, mine: list[dict[str, Any]], first: list[dict[str, Any]]) -> str:
    if not mine:
        return f"| `{strategy}` | – | – | – | 0 | – |"
    values = [100 * row["test_accuracy"] for row in mine]
    apart = f"{fmean(values) - 100 * _mean(first):+.2f}" if first else "–"
    sent = _sent(mine) / _sent(first) if first and _sent(first) else None
    cells = (
        f"`{strategy}`",
        f"{fmean(values):.2f}",
        f"{min(values):.2f} – {max(values):.2f}",
        "" if mine is first else apart,
        str(len(mine)),
        "–" if sent is None else f"{sent:.3f} ×",
    )
    return "| " + " | ".join(cells) + " |"


def report_bars(wanted: Wanted, results: Results) -> None:
    for table in wanted.tables():
        rows = _rows(table, wanted, results)
        for name, strategy, other in BARS:
            if name == table.name and rows[strategy] and rows[other]:
                points = 100 * (_mean(rows[strategy]) - _mean(rows[other]))
                report(
                    f"{table.name}: {strategy} - {other}, points of accuracy",
                    bar=">= -0.3",
                    value=points,
                    seeds=min(len(rows[strategy]), len(rows[other])),
                )


def _rows(table: Table, wanted: Wanted, results: Results) -> Rows:
    return {
        strategy: [
            row for trial in wanted.trials(table, strategy) if (row := results.find(trial.key))
        ]
        for strategy in table.strategies
    }


def _mean(rows: list[dict[str, Any]]) -> float:
    return fmean(row["test_accuracy"] for row in rows)


def _sent(rows: list[dict[str, Any]]) -> float:
    return fmean(row["bytes_sent"] or 0 for row in rows)
