"""The figures of a lab's machines in words."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from phalanx.core import words

if TYPE_CHECKING:
    from phalanx.lab.lab import Lab, LabMachine


def row(lab: Lab, machine: LabMachine) -> list[str]:
    """Share of a core, processes, memory, bytes received and sent; of a dead machine a dash."""
    share = "all" if machine.cpu is None else f"{machine.cpu:g} %"
    if machine.status in ("killed", "lost"):
        return [share, "-", "-", "-", "-"]
    processes, memory = lab.usage(machine.name)
    received, sent = lab.counters(machine.name)
    return [share, str(processes), *(words.size(n, binary=True) for n in (memory, received, sent))]


def rate_words(rate: float | None) -> str:
    if rate is None:
        return "unshaped"
    with suppress(StopIteration):
        unit, size = next((u, s) for u, s in (("G", 1e9), ("M", 1e6)) if rate >= s)
        return f"{rate / size:g} {unit}bit/s"
    return f"{rate / 1e3:g} kbit/s"
