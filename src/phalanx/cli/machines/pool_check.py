"""``phalanx pool check``: log in to all machines, and print what would make a run fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.output import Output, write_problem
from phalanx.cli.request import options as o
from phalanx.core.errors import DONE, MACHINE_FAILED, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.launch.pool.pool_check import Check
    from phalanx.launch.pool.pool_findings import PoolFinding
    from phalanx.pool.machine import Pool


def check(
    file: o.Blueprint,
    machines: o.Machines = "all",
    offline: Annotated[
        bool, typer.Option("--offline", help="Only read the blueprint; connect to no machine.")
    ] = False,
    json: o.Json = False,
) -> int:
    """Log in to all machines; show what they have and which machines they can reach.

    Each failure is printed with its remedy, and the exit code is then 3. With --offline the
    blueprint is only read; its machines, and those of each selection, are listed.

    Example: phalanx pool check pool.yaml
    """
    from phalanx.plan.select import select
    from phalanx.pool.blueprint import read_blueprint

    pool = read_blueprint(file)
    output = Output(json)
    if offline:
        _show_offline(pool, output)
        return DONE
    found, findings = _check(select(pool, machines), output)
    _show(found, findings, pool, output)
    output.result(as_json(pool, found, findings))
    return MACHINE_FAILED if any(each.level == "error" for each in findings) else DONE


def _show_offline(pool: Pool, output: Output) -> None:
    """Show what the blueprint says, and which machines each selection would take."""
    from phalanx.cli.show.check_words import plain_table
    from phalanx.plan.select import GROUPS, select

    titles = ("name", "host", "cores", "GPUs", "efficient", "watts", "price/h")
    table = plain_table(*titles, left=("host",))
    for column in table.columns[:2]:
        column.no_wrap, column.overflow = False, "fold"
    for machine in pool.machines:
        cores, watts, price = machine.cores, machine.watts, machine.price_per_hour
        table.add_row(
            machine.name,
            machine.endpoint,
            "?" if cores is None else str(cores),
            str(machine.gpus),
            "yes" if machine.energy_efficient else "no",
            "?" if watts is None else f"{watts:g}",
            "?" if price is None else f"{price:.2f}",
        )
    output.human.print(table, soft_wrap=False)
    output.say("\nselection    takes", "bold")
    selections: dict[str, list[str]] = {}
    for text in (*GROUPS, "fastest:1"):
        try:
            selections[text] = taken = [m.name for m in select(pool, text)]
        except InputError:
            selections[text] = taken = []
        line = f"{text:<13}{', '.join(taken) or 'no machine'}"
        output.human.print(line, style=None if taken else "dim", soft_wrap=False)
    for warning in pool.warnings:
        output.human.print(f"warning: {warning}", style="yellow", soft_wrap=False)
    machines = [m.model_dump(mode="json", exclude={"cpu_ids"}) for m in pool.machines]
    known = {"source": pool.source, "machines": machines, "selections": selections}
    output.result({**known, "warnings": list(pool.warnings)})


def _check(chosen: Sequence[Any], output: Output) -> tuple[Check, list[PoolFinding]]:
    import asyncio

    from phalanx.launch.pool.pool_check import check_pool
    from phalanx.launch.pool.pool_findings import findings_of
    from phalanx.launch.ssh.ssh_login import with_passwords

    chosen = with_passwords(chosen)
    with output.human.status("connecting") as status:
        found = asyncio.run(check_pool(chosen, status.update))
    return found, findings_of(found)


def _show(check: Check, findings: Sequence[PoolFinding], pool: Pool, output: Output) -> None:
    from phalanx.cli.show import check_words as words

    output.human.print(words.machines_table(check), soft_wrap=False)
    for line in words.gpu_lines(check):
        output.say(line)
    if len(check.knocks) > 0:
        output.human.print(words.reach_table(check), soft_wrap=False)
    for warning in pool.warnings:
        output.say(f"warning: {warning}", style="yellow")
    for each in findings:
        if each.level == "error":
            write_problem(each.cause, each.remedy)
        else:
            output.say(f"warning: {each.cause}\n  {each.remedy}", style="yellow")
    if not findings:
        count = len(check.visits)
        everyone = "the machine is ready" if count == 1 else f"all {count} machines are ready"
        output.say(everyone, style="green")


def as_json(pool: Pool, check: Check, findings: Sequence[PoolFinding]) -> dict[str, Any]:
    import dataclasses

    import msgspec

    machines = []
    for visit in check.visits:
        facts = None if visit.facts is None else msgspec.to_builtins(visit.facts)
        machines.append(
            {
                "name": visit.machine.name,
                "host": visit.machine.host,
                "reachable": visit.error is None,
                "python": visit.python,
                "torch": visit.torch,
                "clock_skew": visit.skew,
                "address": visit.address,
                "facts": facts,
            }
        )
    return {
        "source": pool.source,
        "machines": machines,
        "reach": [dataclasses.asdict(knock) for knock in check.knocks],
        "findings": [dataclasses.asdict(each) for each in findings],
        "warnings": list(pool.warnings),
    }
