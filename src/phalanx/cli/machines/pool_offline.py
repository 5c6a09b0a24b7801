"""What a blueprint says, and what each selection would take, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from phalanx.pool.machine import Machine, Pool


def selections_of(pool: Pool) -> dict[str, list[str]]:
    from phalanx.plan.select import GROUPS, select

    taken: dict[str, list[str]] = {}
    for text in (*GROUPS, "fastest:1"):
        try:
            taken[text] = [m.name for m in select(pool, text)]
        except InputError:
            taken[text] = []
    return taken


def as_json(pool: Pool, selections: dict[str, list[str]]) -> dict[str, object]:
    return {
        "source": pool.source,
        "machines": [m.model_dump(mode="json", exclude={"cpu_ids"}) for m in pool.machines],
        "selections": selections,
        "warnings": list(pool.warnings),
    }


def show(console: Console, pool: Pool, selections: dict[str, list[str]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(_table(pool.machines), soft_wrap=False)
    console.print(Text("\nselection    takes", style="bold"))
    for name, taken in selections.items():
        line = Text(f"{name:<13}").append(", ".join(taken) or "no machine")
        line.stylize("dim" if not taken else "")
        console.print(line, soft_wrap=False)
    for warning in pool.warnings:
        text = Text(f"warning: {warning}", style="yellow")
        console.print(Padding(text, (1, 0, 0, 0)), soft_wrap=False)


def _table(machines: tuple[Machine, ...]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("host", overflow="fold")
    for title in ("cores", "GPUs", "efficient", "watts", "price/h"):
        table.add_column(title, justify="right", no_wrap=True)
    for machine in machines:
        table.add_row(*(Text(cell) for cell in _row(machine)))
    return table


def _row(machine: Machine) -> list[str]:
    price = machine.price_per_hour
    return [
        machine.name,
        machine.endpoint,
        "?" if machine.cores is None else str(machine.cores),
        str(machine.gpus),
        "yes" if machine.energy_efficient else "no",
        "?" if machine.watts is None else f"{machine.watts:g}",
        "?" if price is None else f"{price:.2f}",
    ]
