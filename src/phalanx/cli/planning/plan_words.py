"""Print a choice of machines and strategy on the terminal: a ranked table, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill

from rich.table import Table

from phalanx.cli.output import Output
from phalanx.core.words import clock, count, seconds
from phalanx.plan.choice.decide import Choice
from phalanx.plan.choice.objectives import COST, ENERGY, TIME, Objectives, joules
from phalanx.plan.prediction import Interval, Prediction

MARK = "►"
WIDTH = 80
MOST_MACHINES = 4
CLOCK_FROM = 100.0
"""A range that ends at this many seconds or later is shown in hours and minutes."""


def show_choice(choice: Choice, goal: Objectives, out: Output) -> None:
    rows = [(p, MARK if p == choice.chosen else "") for p in choice.ranked]
    out.human.print(_table(rows, goal), soft_wrap=False, width=WIDTH)
    if choice.unknown:
        word = "faster" if goal.objective == TIME else "better"
        out.say()
        out.say(f"{word}, accuracy unknown", "bold")
        rows = [(p, "?") for p in choice.unknown]
        out.human.print(_table(rows, goal), soft_wrap=False, width=WIDTH)
    out.say()
    for reason in choice.reasons:
        out.say(fill(reason, WIDTH, initial_indent="- ", subsequent_indent="  "))


def _table(rows: Sequence[tuple[Prediction, str]], goal: Objectives) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("machines", overflow="fold", min_width=8, max_width=18)
    table.add_column("strategy", overflow="fold", min_width=10, max_width=18)
    extra = {ENERGY: "energy", COST: "price"}.get(goal.objective)
    for name in ("samples/s", "total", extra):
        if name:
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limited by", overflow="fold", min_width=10)
    for found, mark in rows:
        strategy = found.strategy.replace("+", "\n+")
        cells = [mark, _machines(found), strategy, _cell(found.samples_per_second, count)]
        cells.append(_time(found.seconds))
        if extra:
            cells.append(_energy(goal.value(found)) if extra == "energy" else _price(found))
        table.add_row(*cells, found.limit, style="bold" if mark == MARK else None)
    return table


def _cell(value: Interval, shown: Callable[[float], str]) -> str:
    """Return the value, and its interval on a line below."""
    return f"{shown(value.value)}\n{shown(value.low)}–{shown(value.high)}"


def _time(value: Interval) -> str:
    if value.high < CLOCK_FROM:
        return f"{seconds(value.value)}\n{value.low:.3g}–{value.high:.3g} s"
    return f"{seconds(value.value)}\n{clock(value.low)}–{clock(value.high)}"


def _energy(value: Interval) -> str:
    number, _, unit = joules(value.high).partition(" ")
    low = value.low / value.high * float(number)
    return f"{joules(value.value)}\n{low:.3g}–{number} {unit}"


def _price(found: Prediction) -> str:
    return _cell(found.price, "{:.3g}".format) if found.price else "0"


def _machines(found: Prediction) -> str:
    names = found.machines
    if len(names) <= MOST_MACHINES:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"
