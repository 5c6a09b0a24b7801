"""``phalanx pool init``: write a blueprint of machines that are given by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.machines.pool_trust import Yes, settle_keys
from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import BAD_INPUT, DONE, MACHINE_FAILED, InputError, PhalanxError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from phalanx.launch.pool.pool_check import Visit
    from phalanx.pool.machine import Machine


def init(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Aliases of ~/.ssh/config, host names, addresses, or 'here' for this machine.",
        ),
    ] = None,
    out: o.Out = Path("pool.yaml"),
    user: Annotated[str | None, typer.Option(metavar="NAME", help="The user to log in as.")] = None,
    key: Annotated[str | None, typer.Option(metavar="PATH", help="The private key.")] = None,
    password: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="One password for all machines: 'prompt' asks once, 'env:NAME' reads a variable.",
        ),
    ] = None,
    yes: Yes = False,
    json: o.Json = False,
) -> int:
    """Log in to machines, find out what they have, and write the blueprint.

    Host keys are shown and recorded as with phalanx pool trust. A machine that cannot be reached
    is written as a comment.

    Example: phalanx pool init here alpha beta
    """
    from datetime import date

    from phalanx.core.files import write_asked
    from phalanx.launch.pool.pool_init import (
        blueprint_text,
        machines_named,
        password_reference,
        with_host_names,
    )
    from phalanx.pool.jumps import keys_beside

    reference = None if password is None else password_reference(password)
    if out.exists():
        raise InputError(f"{out} already exists", "Give another --out, or remove it first.")
    output = Output(json)
    machines = machines_named(_names(names), out, user=user, key=key, password=reference)
    seen, agreed = settle_keys(machines, keys_beside(out), output, yes=yes)
    if not agreed:
        return MACHINE_FAILED if any(each.status == "changed" for each in seen) else BAD_INPUT
    unseen = {each.machine.name: each.problem for each in seen if each.problem is not None}
    visits = _visits([m for m in machines if m.name not in unseen], output)
    visits = _in_order(machines, visits, unseen)
    if all(visit.error is not None for visit in visits):
        _problems(visits, output, unseen)
        return MACHINE_FAILED
    with_host_names(visits)
    write_asked(out, blueprint_text(visits, out, date.today()))
    _show(visits, out, output, unseen)
    return MACHINE_FAILED if any(visit.error for visit in visits) else DONE


def _names(names: list[str] | None) -> list[str]:
    if not names:
        raise InputError(
            "no machine was named", "For example: phalanx pool init here alpha 192.0.2.10"
        )
    return list(dict.fromkeys(names))


def _visits(machines: Sequence[Machine], output: Output) -> list[Visit]:
    import asyncio

    from phalanx.launch.pool.pool_init import find_out, typed_password

    typed = typed_password(machines)
    with output.human.status("reading machine facts"):
        return asyncio.run(find_out(machines, typed))


def _in_order(
    machines: Sequence[Machine], visits: Sequence[Visit], unseen: dict[str, PhalanxError]
) -> list[Visit]:
    """Return a visit of each machine, in order; one without a host key has only its error."""
    from phalanx.launch.pool.pool_check import Visit

    known = {visit.machine.name: visit for visit in visits}
    return [known.get(m.name) or Visit(m, error=unseen.get(m.name)) for m in machines]


def _show(visits: Sequence[Visit], out: Path, output: Output, told: Collection[str]) -> None:
    from phalanx.cli.show.check_words import gpu_lines, machines_table
    from phalanx.launch.pool.pool_check import Check

    check = Check(list(visits))
    output.human.print(machines_table(check), soft_wrap=False)
    for line in gpu_lines(check):
        output.say(line)
    _problems(visits, output, told)
    output.say(f"\nwritten to {out}; next: phalanx pool check {out}")
    machines = [{"name": v.machine.name, "reachable": v.error is None} for v in visits]
    output.result({"file": str(out), "machines": machines})


def _problems(visits: Sequence[Visit], output: Output, told: Collection[str]) -> None:
    """Show the machines' errors that were not shown with their host keys already."""
    for visit in visits:
        if visit.error is not None and visit.machine.name not in told:
            output.problem(visit.error)
