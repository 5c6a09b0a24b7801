"""What Slurm writes in a notation of its own: lists of hosts, and of tasks on each of them."""

from __future__ import annotations

import re

from phalanx.core.errors import InputError

_FIRST_PORT, _PORTS = 15000, 15000
"""Below the ports that Linux hands out by itself (from 32768)."""
_MOST_NODES = 1 << 16
_COUNT = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")


def first_host(text: str) -> str:
    """``node01`` of ``node[01-04,7],login``; brackets may be several (``rack[1-2]n[01-09]``)."""
    whole = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", whole[0]) if whole else ""


def tasks_by_node(name: str, text: str) -> list[int]:
    """``2(x3),1`` as 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        times = int(found[2] or 1) if found else 0
        if found is None or len(counts) + times > _MOST_NODES:
            raise InputError(f"{name} cannot be read: '{text[:40]}'", "Write it like 2(x3),1.")
        counts += [int(found[1])] * times
    return counts


def port_of_job(job: int, step: int) -> int:
    """One that every process of a step works out alike, and jobs on one machine unlike."""
    return _FIRST_PORT + (job * 16 + step) % _PORTS
