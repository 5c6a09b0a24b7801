"""``phalanx lab``: emulated machines on this host, for tests, courses and demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.lab.needs import check_root

if TYPE_CHECKING:
    from rich.text import Text

    from phalanx.lab.lab import Lab
    from phalanx.lab.state import MachineState

STYLES = {"up": "green", "slow": "yellow", "cut": "red", "killed": "red", "lost": "red"}
FIRST_WORDS = "# The lab '"
"""The first words of a blueprint that a lab wrote, which a lab may overwrite."""

LabName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The lab. Default: the only one.")
]
InLab = Annotated[
    str | None,
    typer.Option("--lab", metavar="NAME", help="The machine's lab, if there are several."),
]
MachineName = Annotated[str, typer.Argument(metavar="MACHINE", help="A machine of the lab.")]

lab_app = typer.Typer(
    help="Emulated machines on this host (root only).", no_args_is_help=True, rich_markup_mode=None
)


@lab_app.command()
def up(
    count: Annotated[int, typer.Option(metavar="N", help="How many machines.")] = 3,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the blueprint.")] = Path(
        "lab.yaml"
    ),
    cpu: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Percent of one core for each machine, such as 60,60,30."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate", metavar="RATE", help="Rate of each link, such as 1gbit, or m3=100mbit,1gbit."
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each machine, such as 4GiB.")
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The lab's name.")] = "lab",
    share: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="A folder below /tmp to share with the machines."),
    ] = None,
    json: o.Json = False,
) -> int:
    """Start emulated machines and write the blueprint that describes them.

    Example: phalanx lab up --count 3 --cpu 80,80,20 --rate 1gbit --out lab.yaml
    """
    from phalanx.lab.lab import Lab

    # Check that the blueprint can be written there before anything is made.
    check_root()
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no such folder", "Give another --out.")
    if out.is_dir() or (out.exists() and not _is_left_over(out)):
        raise InputError(f"{out} already exists", "Remove it, or give another --out.")
    made = Lab.up(count, name=name, cpu=cpu, rate=rate, memory=memory, share=share or ())
    try:
        made.write_blueprint(out)
    except BaseException:
        made.down()
        raise
    output = Output(json)
    _show(made, output)
    output.say(f"blueprint  {out}   (phalanx pool check {out})")
    output.say(f"end it     phalanx lab down {name}")
    output.result(_as_json(made))
    return 0


@lab_app.command()
def down(name: LabName = None, json: o.Json = False) -> int:
    """End a lab and remove everything it created, even after a crash.

    Example: phalanx lab down
    """
    from phalanx.lab.lab import take_down
    from phalanx.lab.state import names

    check_root()
    output = Output(json)
    known = names()
    chosen = name if name or not known else _only(known)
    done = chosen is not None and take_down(chosen)
    if done:
        output.say(f"lab '{chosen}' is down")
    elif chosen is None or not known:
        output.say("no lab is up")
    else:
        output.say(f"there is no lab '{chosen}'. {did_you_mean(chosen, known)}")
    output.result({"lab": chosen, "down": done})
    return 0


@lab_app.command()
def status(name: LabName = None, json: o.Json = False) -> int:
    """Show the machines of every lab, or of one.

    Example: phalanx lab status
    """
    from phalanx.lab.lab import Lab
    from phalanx.lab.state import names

    check_root()
    output = Output(json)
    shown = []
    for one in [name] if name else names():
        try:
            found = Lab.load(one)
        except InputError as error:
            if name:
                raise
            output.say(f"{error.cause}. {error.remedy}", style="yellow")
            continue
        _show(found, output)
        shown.append(_as_json(found))
    if not name and not names():
        output.say("no lab is up; start one: phalanx lab up --count 3")
    output.result({"labs": shown})
    return 0


@lab_app.command()
def slow(
    machine: MachineName,
    percent: Annotated[float, typer.Argument(metavar="PERCENT", help="Percent of one core.")],
    lab: InLab = None,
    json: o.Json = False,
) -> int:
    """Change how much processor time a machine gets.

    Example: phalanx lab slow m1 25
    """
    now = f"has {percent:g} % of a core now"
    return _change(lab, machine, json, lambda found: found.slow(machine, percent), now)


@lab_app.command()
def cut(machine: MachineName, lab: InLab = None, json: o.Json = False) -> int:
    """Take a machine's link down: nothing goes in or out, and no machine is notified.

    Example: phalanx lab cut m2
    """
    return _change(lab, machine, json, lambda found: found.cut(machine), "is cut off")


@lab_app.command()
def heal(machine: MachineName, lab: InLab = None, json: o.Json = False) -> int:
    """Bring a machine's link up again, and restore its quota.

    Example: phalanx lab heal m2
    """
    return _change(lab, machine, json, lambda found: found.heal(machine), "is restored")


@lab_app.command()
def kill(machine: MachineName, lab: InLab = None, json: o.Json = False) -> int:
    """End all processes of a machine at once, as if its power failed.

    Example: phalanx lab kill m2
    """
    return _change(lab, machine, json, lambda found: found.kill(machine), "is powered off")


def _is_left_over(path: Path) -> bool:
    """Whether the file is the blueprint of a lab that no longer exists."""
    from phalanx.lab.state import names, read

    states = [read(name) for name in names()]
    if str(path.absolute()) in [state.blueprint for state in states if state]:
        return False
    with path.open("rb") as file:
        return file.read(len(FIRST_WORDS)) == FIRST_WORDS.encode()


def _change(
    name: str | None, machine: str, json: bool, act: Callable[[Lab], None], words: str
) -> int:
    """Call ``act`` with the named lab, or the only one, and print ``words`` about the machine."""
    from phalanx.lab.lab import Lab
    from phalanx.lab.state import names

    check_root()
    known = names()
    if not known:
        raise InputError("no lab is up", "Start one: phalanx lab up --count 3")
    found = Lab.load(name or _only(known))
    act(found)
    output = Output(json)
    output.say(f"{machine} {words}")
    output.result({"lab": found.name, "machine": machine, "status": found.machine(machine).status})
    return 0


def _only(known: list[str]) -> str:
    if len(known) > 1:
        raise InputError(f"there are {len(known)} labs", f"Name one: {', '.join(known)}")
    return known[0]


def _as_json(found: Lab) -> dict[str, Any]:
    names = ("name", "address", "status", "rate", "pid")
    machines = [
        {**{name: getattr(machine, name) for name in names}, "cpu_percent": machine.cpu}
        for machine in found.machines
    ]
    lab = found.state
    limits = {"rate": lab.rate, "memory": lab.memory}
    where = {"subnet": lab.subnet, "host": lab.gateway, "blueprint": lab.blueprint}
    return {"lab": lab.name, **where, **limits, "machines": machines}


def _show(found: Lab, output: Output) -> None:
    from phalanx.cli.show.check_words import plain_table
    from phalanx.core import words

    lab = found.state
    own = [f"{m.name} {_rate(m.rate)}" for m in found.machines if m.rate != lab.rate]
    parts = [
        f"lab '{found.name}'",
        f"this host is {lab.gateway}",
        f"links {', '.join([_rate(lab.rate), *own])}",
        *([f"memory {words.size(lab.memory, binary=True)}"] if lab.memory else []),
    ]
    output.say(" · ".join(parts), style="bold")
    figures = ("core", "processes", "memory used", "received", "sent")
    left = ("address", "status")
    table = plain_table("machine", *left, *figures, left=left)
    for machine in found.machines:
        table.add_row(*_row(found, machine))
    output.human.print(table, soft_wrap=False)


def _rate(rate: float | None) -> str:
    from phalanx.core import words

    return "unshaped" if rate is None else words.rate(rate)


def _row(lab: Lab, machine: MachineState) -> list[str | Text]:
    """A machine's row: name, address, status, share of a core, processes, memory and bytes received
    and sent, with dashes for a dead machine."""
    from rich.text import Text

    from phalanx.core import words

    state = Text(machine.status, style=STYLES[machine.status])
    share = "all" if machine.cpu is None else f"{machine.cpu:g} %"
    if machine.status in ("killed", "lost"):
        return [machine.name, machine.address, state, share, "-", "-", "-", "-"]
    processes, memory = lab.usage(machine.name)
    sizes = (words.size(n, binary=True) for n in (memory, *lab.counters(machine.name)))
    return [machine.name, machine.address, state, share, str(processes), *sizes]
