"""Choose the machines of parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean

MACHINES_PER_SERVER = 2
"""Machines of workers that one server's link can serve without becoming the bottleneck."""
ALIKE = 4.0
"""Links count as equal within a step; this is the number of steps per doubling of the rate."""


@dataclass(frozen=True)
class Host:
    """A machine as a place for servers: its link (``None``: not measured) and its workers."""

    name: str
    bits_per_second: float | None = None
    workers: int = 0


def place_servers(hosts: Sequence[Host], wish: int | Sequence[str] | None = None) -> list[str]:
    """Return the machine of each server, in the order of the shards.

    ``wish`` is a number, or names (also of machines without workers), or nothing: one server for
    each pair of machines with workers. Machines with the best links come first, because all
    gradients are sent there; among equal or unknown links, machines with fewer workers, whose cores
    are less busy. If there are more servers than machines, some machines have several.
    """
    if not hosts:
        raise InputError("there is no machine for a server", "Add a machine to the pool.")
    if wish is not None and not isinstance(wish, int):
        return _named(hosts, [wish] if isinstance(wish, str) else wish)
    working = [host for host in hosts if host.workers > 0] or list(hosts)
    count = -(-len(working) // MACHINES_PER_SERVER) if wish is None else wish
    if count < 1:
        raise InputError(f"servers={count} is too few", "Use 1 or more.")
    # By link, unmeasured ones last, then by number of workers.
    links = {h.name: -round(ALIKE * log2(h.bits_per_second or 1.0)) for h in working}
    best = sorted(working, key=lambda host: (links[host.name], host.workers))
    return [best[i % len(best)].name for i in range(count)]


def _named(hosts: Sequence[Host], names: Sequence[str]) -> list[str]:
    known = [host.name for host in hosts]
    if not names:
        raise InputError("no machine is named for the servers", f"Name one of {', '.join(known)}.")
    for name in names:
        if name not in known:
            raise InputError(
                f"the server '{name}' is not a machine of the pool", did_you_mean(name, known)
            )
    return list(names)
