"""The tables of ``phalanx pool check``, at 80 columns."""

from __future__ import annotations

from collections.abc import Collection

from rich.table import Table
from rich.text import Text

from phalanx.core import words
from phalanx.launch.pool.pool_check import Check, Visit

TITLES = ("login", "user", "Python", "torch", "cores", "memory", "free", "GPUs", "clock")
NAME_WIDTH = 12
USER_WIDTH = 6


def machines_table(check: Check) -> Table:
    table = plain_table("machine", *TITLES, left=("user",))
    for visit in check.visits:
        table.add_row(short(visit.machine.name), *_cells(visit))
    return table


def _cells(visit: Visit) -> list[Text]:
    facts = visit.facts
    if facts is None:
        return [Text("no", style="red"), *(Text("–", style="dim") for _ in TITLES[1:])]
    cells = [
        words.short(facts.user, USER_WIDTH),
        visit.python or "none",
        (visit.torch or "none").partition("+")[0],
        str(facts.cores),
        words.size(facts.memory, digits=2),
        words.size(facts.disk_free, digits=2),
        str(len(facts.gpus)),
        clock_words(visit.skew),
    ]
    return [Text("yes", style="green"), *(Text(cell[:10]) for cell in cells)]


def gpu_lines(check: Check) -> list[str]:
    """Lines with the GPUs' models: the table has room only for their number."""
    lines = []
    for visit in check.visits:
        gpus = visit.facts.gpus if visit.facts else []
        for name in dict.fromkeys(gpu.name for gpu in gpus):
            same = [gpu for gpu in gpus if gpu.name == name]
            memory = f", {words.size(same[0].memory)} each" if same[0].memory else ""
            lines.append(f"{visit.machine.name}: {len(same)} × {name}{memory}")
    return lines


def reach_table(check: Check) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("\nmachine", "\nis reached at", "\nby"):
        table.add_column(title, no_wrap=title != "\nby")
    for visit in check.visits:
        if visit.address is not None:
            words, style = _reached_by(check, visit.machine.name)
            table.add_row(short(visit.machine.name), Text(visit.address), Text(words, style=style))
    return table


def _reached_by(check: Check, name: str) -> tuple[str, str]:
    knocks = [knock for knock in check.knocks if knock.target == name]
    shut = [knock.source for knock in knocks if not knock.ok]
    if not knocks or len(shut) == len(knocks):
        return "no other", "red"
    return (f"all but {', '.join(shut)}", "yellow") if shut else ("all others", "green")


def clock_words(skew: float | None) -> str:
    """Return how far a clock is ahead of this machine's, or behind it (negative)."""
    if skew is None:
        return "?"
    for unit, seconds in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(skew) >= 0.98 * seconds:
            return f"{skew / seconds:+.0f} {unit}"
    return "ok" if abs(skew) < 0.5 else f"{skew:+.1f} s"


def short(name: str) -> str:
    return words.short(name, NAME_WIDTH)


def plain_table(first: str, *titles: str, left: Collection[str] = (), gap: int = 2) -> Table:
    """Return a table without lines; columns are aligned right, except the first and ``left``."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, gap, 0, 0))
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
    return table
