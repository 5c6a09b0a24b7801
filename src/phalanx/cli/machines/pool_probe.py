"""``phalanx pool probe``: rates of every machine, links of every pair, collectives by size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import DONE, MACHINE_FAILED, InputError

if TYPE_CHECKING:
    from phalanx.pool.measured import Probe

SHORTEST, LONGEST = 2.0, 3600.0


def probe(
    file: o.Blueprint,
    machines: o.Machines = "all",
    seconds: Annotated[
        float, typer.Option(metavar="N", help="Most seconds to measure, once workers run.")
    ] = 30.0,
    json: o.Json = False,
) -> int:
    """Measure how fast machines compute, the links between them, and collectives.

    The figures are saved beside the blueprint: those of pool.yaml in pool.probe.json. The
    machines' Python needs torch; Phalanx itself is copied there.

    Example: phalanx pool probe pool.yaml --seconds 30
    """
    import msgspec

    from phalanx.launch.pool.probe import probe_links
    from phalanx.launch.ssh.ssh_login import with_passwords
    from phalanx.plan.select import select
    from phalanx.pool.blueprint import read_blueprint
    from phalanx.pool.here import as_measured
    from phalanx.pool.measured import path_beside, write_probe

    if not SHORTEST <= seconds <= LONGEST:
        raise InputError(
            f"--seconds cannot be {seconds:g}", f"Give a number from {SHORTEST:g} to {LONGEST:g}."
        )
    pool = read_blueprint(file)
    chosen = select(pool, machines)
    output = Output(json)
    chosen = with_passwords(chosen)
    with output.human.status("connecting") as status:
        found = probe_links(chosen, seconds, tls=pool.tls, say=status.update)
    if found.rates:
        write_probe(found, file)
    _show(found, output)
    for warning in as_measured(pool, found).warnings:
        output.say(f"warning: {warning}", style="yellow")
    if found.rates:
        output.say(f"\nsaved in {path_beside(file)}")
    for trouble in found.trouble:
        output.problem(InputError(trouble.cause, trouble.remedy))
    figures: dict[str, object] = msgspec.to_builtins(found)
    output.result({**figures, "file": str(path_beside(file)) if found.rates else None})
    return MACHINE_FAILED if found.trouble else DONE


def _show(probe: Probe, output: Output) -> None:
    from phalanx.cli.show import probe_words as words

    if probe.rates:
        output.say(words.HEADING, style="bold")
        output.human.print(words.rates_table(probe), soft_wrap=False)
        output.say()
    if not probe.links:
        return
    title, table = words.links_table(probe)
    output.say(title, style="bold")
    output.human.print(table, soft_wrap=False)
    if probe.collectives:
        count = len(probe.participants)
        output.say(
            f"\nall-reduce of {count} machines: median time, and ×RATIO to the predicted one",
            style="bold",
        )
        output.human.print(words.collectives_table(probe), soft_wrap=False)
        for line in words.notes(probe):
            output.say(line, style="dim")
    if probe.left_out:
        output.say(f"\n{words.left_out_title(probe)}", style="yellow")
        for line in words.left_out_words(probe):
            output.human.print(f"  {line}", soft_wrap=False)
