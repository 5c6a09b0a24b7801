"""A choice on the terminal: the ranked table, and the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.words import count, seconds
from phalanx.plan.choice.wishes import COST, ENERGY, TIME, Wishes, joules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from phalanx.cli.output import Output
    from phalanx.plan.choice.decide import Choice
    from phalanx.plan.prediction import Interval, Prediction

MARK = "►"
WIDTH = 80
MOST_MACHINES = 4


def show_choice(choice: Choice, wishes: Wishes, out: Output) -> None:
    rows = [(p, MARK if p == choice.chosen else "") for p in choice.ranked]
    out.human.print(_table(rows, wishes), soft_wrap=False, width=WIDTH)
    if choice.unknown:
        word = "faster" if wishes.objective == TIME else "better"
        out.say()
        out.say(f"{word}, accuracy unknown", "bold")
        rows = [(p, "?") for p in choice.unknown]
        out.human.print(_table(rows, wishes), soft_wrap=False, width=WIDTH)
    out.say()
    for reason in choice.reasons:
        out.human.print(f"- {reason}", soft_wrap=False, width=WIDTH)


def _table(rows: Sequence[tuple[Prediction, str]], wishes: Wishes) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("machines", overflow="fold", max_width=18)
    table.add_column("strategy", overflow="fold", max_width=18)
    table.add_column("samples/s", justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    extra = {ENERGY: "energy", COST: "price"}.get(wishes.objective)
    if extra:
        table.add_column(extra, justify="right", no_wrap=True)
    table.add_column("limited by", overflow="fold")
    for found, mark in rows:
        cells = [
            mark,
            _machines(found),
            found.strategy,
            _cell(found.samples_per_second, count),
            _cell(found.seconds, seconds),
        ]
        if extra:
            cells.append(_cell(wishes.value(found), joules if extra == "energy" else _price))
        table.add_row(*cells, found.limit, style="bold" if mark == MARK else None)
    return table


def _cell(value: Interval, words: object) -> str:
    """The value, and below it what it lies between."""
    assert callable(words)
    return f"{words(value.value)}\n{words(value.low)} – {words(value.high)}"


def _price(value: float) -> str:
    return f"{value:.3g}"


def _machines(found: Prediction) -> str:
    names = found.machines
    if len(names) <= MOST_MACHINES:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"
