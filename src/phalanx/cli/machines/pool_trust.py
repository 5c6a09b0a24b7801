"""``phalanx pool trust``: show host keys, and record them once the user agrees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import BAD_INPUT, DONE, MACHINE_FAILED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.launch.pool.pool_trust import Shown
    from phalanx.pool.machine import Machine

Yes = Annotated[
    bool, typer.Option("--yes", help="Record host keys without asking; for trusted networks.")
]


def trust(
    file: o.Blueprint, machines: o.Machines = "all", yes: Yes = False, json: o.Json = False
) -> int:
    """Show the host keys of machines, and record them beside the blueprint.

    Those of pool.yaml go to pool.known_hosts (OpenSSH format). Compare the fingerprints with what
    ssh-keygen -lf prints on the machines. A key that differs from the recorded one is never
    replaced: remove its line by hand.

    Example: phalanx pool trust pool.yaml
    """
    from phalanx.launch.ssh.ssh_login import with_jump_passwords
    from phalanx.plan.select import select
    from phalanx.pool.blueprint import read_blueprint
    from phalanx.pool.jumps import keys_beside

    output = Output(json)
    chosen = with_jump_passwords(select(read_blueprint(file), machines))
    shown, agreed = settle_keys(chosen, keys_beside(file), output, yes=yes)
    output.result({"file": str(keys_beside(file)), "keys": [_as_json(each) for each in shown]})
    if any(each.problem for each in shown):
        return MACHINE_FAILED
    return DONE if agreed else BAD_INPUT


def settle_keys(
    machines: Sequence[Machine], file: Path, output: Output, *, yes: bool
) -> tuple[list[Shown], bool]:
    """Show host keys, and record new ones if the user agrees; jump hosts come first.

    Return the keys, and whether all were accepted. Nothing is recorded after a changed key.
    """
    import asyncio

    from phalanx.launch.pool.pool_trust import in_waves, look_at
    from phalanx.launch.ssh.known_keys import record

    seen: list[Shown] = []
    for wave in in_waves(machines):
        shown = asyncio.run(look_at(wave))
        seen += shown
        for each in shown:
            _show(each, output)
        new = [(each.machine, each.key) for each in shown if each.status == "new" and each.key]
        if any(each.status == "changed" for each in shown):
            return seen, False
        if new and not _agreed(len(new), file, output, yes):
            return seen, False
        if new:
            record(file, new)
            output.say(f"recorded in {file}")
    return seen, True


def _show(shown: Shown, output: Output) -> None:
    if shown.problem is not None:
        output.problem(shown.problem)
        return
    where = shown.machine.label
    state = "new" if shown.status == "new" else f"known: {shown.place}"
    output.say(f"{where}  {shown.kind}  {state}")
    output.say(f"    {shown.fingerprint}")


def _agreed(count: int, file: Path, output: Output, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        output.note(
            "not recorded: no terminal to confirm in; check the fingerprints, then use --yes"
        )
        return False
    what = "this key" if count == 1 else f"these {count} keys"
    return typer.confirm(f"Record {what} in {file}?", err=True)


def _as_json(shown: Shown) -> dict[str, object]:
    return {
        "machine": shown.machine.name,
        "host": shown.machine.endpoint,
        "status": shown.status,
        "kind": shown.kind,
        "fingerprint": shown.fingerprint,
        "known_from": shown.place,
        "problem": shown.problem.cause if shown.problem else None,
    }
