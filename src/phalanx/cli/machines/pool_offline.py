"""What a blueprint says, and what each selection would take, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.cli.output import Output
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


def show(output: Output, pool: Pool, selections: dict[str, list[str]]) -> None:
    from phalanx.cli.show.check_words import plain_table

    table = plain_table(
        "name", "host", "cores", "GPUs", "efficient", "watts", "price/h", left=("host",)
    )
    for machine in pool.machines:
        table.add_row(*_row(machine))
    output.human.print(table, soft_wrap=False)
    output.say("\nselection    takes", "bold")
    for name, taken in selections.items():
        output.say(f"{name:<13}{', '.join(taken) or 'no machine'}", None if taken else "dim")
    for warning in pool.warnings:
        output.say(f"warning: {warning}", "yellow")


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
