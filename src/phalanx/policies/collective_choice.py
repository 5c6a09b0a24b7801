"""Chooses the all-reduce: the one that the user named, or the cheapest by the cost formulas."""

from __future__ import annotations

from phalanx.core.errors import InputError
from phalanx.policies.collective_cost import ALL_REDUCE, COSTS, LinkSpeed

USUAL_LATENCY = 100e-6
USUAL_BANDWIDTH = 125e6
"""Figures of an ordinary wired network of 1 Gbit/s, for links that were not measured."""

MOST_DIRECT = 8
"""More participants than this, all sending to one port at once, overrun the buffers of ordinary
switches (Phanishayee et al., "Measurement and analysis of TCP throughput collapse in cluster-based
storage systems", 2008)."""


def choose(
    topology: str | None,
    size: int,
    bytes: int,
    latency: float | None = None,
    bandwidth: float | None = None,
) -> str:
    """The name of the chosen algorithm, which is the same for the same numbers."""
    if topology is not None:
        if topology not in ALL_REDUCE:
            raise InputError(
                f"unknown topology '{topology}'", f"Choose one of {', '.join(ALL_REDUCE)}."
            )
        return topology
    if size <= 2:
        return "direct"
    link = LinkSpeed(latency or USUAL_LATENCY, bandwidth or USUAL_BANDWIDTH)
    names = [name for name in ALL_REDUCE if name != "direct" or size <= MOST_DIRECT]
    return min(names, key=lambda name: ALL_REDUCE[name](size, bytes).seconds(link))


def exchange_name(
    topology: str | None, size: int, bytes: float, latency: float, coded: bool
) -> str:
    """The collective for a gradient, as a training chooses it, which knows only the latency. An
    encoded gradient cannot be summed on the way, so it is gathered."""
    if coded:
        return "all_gather.ring" if size > MOST_DIRECT else "all_gather"
    return f"all_reduce.{choose(topology, size, int(bytes), latency or None)}"


def exchange_seconds(
    topology: str | None, size: int, bytes: float, link: LinkSpeed, *, coded: bool = False
) -> float:
    """Seconds to exchange ``bytes`` among ``size`` hosts."""
    if size < 2:
        return 0.0
    name = exchange_name(topology, size, bytes, link.latency, coded)
    return COSTS[name](size, bytes).seconds(link)
