"""``phalanx pool``: what a blueprint says, and what each selection would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.pool_probe import probe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from phalanx.pool.machine import Machine, Pool

pool_app = typer.Typer(
    help="The machines that can take part.", no_args_is_help=True, rich_markup_mode=None
)


@pool_app.callback()
def pool() -> None:
    """The machines that can take part."""


@pool_app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A blueprint, YAML or JSON.")],
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object as the last line of stdout.")
    ] = False,
) -> None:
    """Print a blueprint's machines and what each selection takes.

    Example: phalanx pool check pool.yaml
    """
    from rich.console import Console

    from phalanx.pool.blueprint import read_blueprint

    found = read_blueprint(file)
    selections = _selections(found)
    _print(Console(stderr=json, highlight=False), found, selections)
    if json:
        print(_as_json(found, selections))


pool_app.command()(probe)


def _selections(pool: Pool) -> dict[str, list[str]]:
    from phalanx.core.errors import InputError
    from phalanx.plan.select import GROUPS, select

    taken: dict[str, list[str]] = {}
    for text in (*GROUPS, "fastest:1"):
        try:
            taken[text] = [m.name for m in select(pool, text)]
        except InputError:
            taken[text] = []
    return taken


def _as_json(pool: Pool, selections: dict[str, list[str]]) -> str:
    import msgspec

    answer = {
        "source": pool.source,
        "machines": [m.model_dump(mode="json", exclude={"cpu_ids"}) for m in pool.machines],
        "selections": selections,
        "warnings": list(pool.warnings),
    }
    return msgspec.json.encode(answer).decode()


def _print(console: Console, pool: Pool, selections: dict[str, list[str]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(_table(pool.machines))
    console.print(Text("\nselection    takes", style="bold"))
    for name, taken in selections.items():
        line = Text(f"{name:<13}").append(", ".join(taken) or "no machine")
        line.stylize("dim" if not taken else "")
        console.print(line)
    for warning in pool.warnings:
        console.print(Padding(Text(f"warning: {warning}", style="yellow"), (1, 0, 0, 0)))


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
        machine.address,
        "?" if machine.cores is None else str(machine.cores),
        str(machine.gpus),
        "yes" if machine.energy_efficient else "no",
        "?" if machine.watts is None else f"{machine.watts:g}",
        "?" if price is None else f"{price:.2f}",
    ]
