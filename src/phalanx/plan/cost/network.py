"""The links between machines: as a probe measured them, or with usual values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

import numpy as np

from phalanx.policies.collective_choice import USUAL_BANDWIDTH, USUAL_LATENCY, exchange_name
from phalanx.policies.collective_cost import COSTS, LinkSpeed
from phalanx.pool.measured import Probe, best_rates, slowest

MEASURED_ERROR = 0.04
"""Error of a collective on the machines that it was measured on."""
FORMULA_ERROR = 0.12
"""Error of the formula, corrected by what was measured on other machines of the pool."""
BARE_ERROR = 0.25
"""Error of the formula alone, from measured links."""
USUAL_HANDLING = 1.5e-9
"""Seconds of processor per byte on machines not probed (a core of a 2-core ARM machine)."""
UNKNOWN_ERROR = 1.5
"""Error of links that were not measured: Ethernet has 100 Mbit/s to 10 Gbit/s."""


@dataclass(frozen=True)
class ExchangeCost:
    """Seconds of an exchange, and the share of them by which they may be wrong."""

    seconds: float
    error: float
    name: str = ""
    """The collective."""


class Network:
    """The links among the machines of a pool."""

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe
        self._out, self._into = best_rates(probe) if probe else ({}, {})
        self._slowest: dict[frozenset[str], tuple[LinkSpeed, bool]] = {}

    def measured(self, names: Sequence[str]) -> bool:
        """Whether all links among these machines were measured."""
        return len(set(names)) <= 1 or self.link(names)[1]

    def sending(self, name: str) -> float:
        """Bytes per second that a machine can send: the rate of its best outgoing link."""
        return self._out.get(name, USUAL_BANDWIDTH)

    def receiving(self, name: str) -> float:
        return self._into.get(name, USUAL_BANDWIDTH)

    def rate(self, name: str) -> float:
        """Bytes per second in the slower direction."""
        return min(self.sending(name), self.receiving(name))

    def handling(self, name: str) -> float:
        """Seconds of the machine's processor for each byte that it sends or receives."""
        links = self._probe.links if self._probe else ()
        found = [k.handling for k in links if k.source == name and k.handling is not None]
        return median(found) if found else USUAL_HANDLING

    def link(self, names: Sequence[str]) -> tuple[LinkSpeed, bool]:
        """The slowest link among ``names``, and whether it was measured."""
        key = frozenset(names)
        if key not in self._slowest:
            found = slowest(self._probe, key) if self._probe else None
            latency, bandwidth = found or (USUAL_LATENCY, USUAL_BANDWIDTH)
            self._slowest[key] = LinkSpeed.measured(latency, bandwidth), found is not None
        return self._slowest[key]

    def exchange(
        self,
        names: Sequence[str],
        count: float,
        topology: str | None = None,
        *,
        coded: bool = False,
    ) -> ExchangeCost:
        """Seconds to exchange ``count`` bytes as training does, between one worker per machine."""
        if len(names) < 2:
            return ExchangeCost(0.0, 0.0)
        link, known = self.link(names)
        name = exchange_name(topology, len(names), count, link.latency, coded)
        seconds = COSTS[name](len(names), count).seconds(link)
        if self._probe is None or not known:
            return ExchangeCost(seconds, UNKNOWN_ERROR, name)
        measured = sorted((c.bytes, c.ratio) for c in self._probe.collectives if c.name == name)
        if not measured:
            return ExchangeCost(seconds, BARE_ERROR, name)
        # Measured over predicted seconds by size; the nearest measured size, in powers of ten.
        sizes, ratios = np.log(measured).T
        size = log(max(count, 1.0))
        distance = float(np.abs(sizes - size).min()) / log(10)
        same = set(names) == set(self._probe.participants)
        error = (MEASURED_ERROR if same else FORMULA_ERROR) + 0.05 * distance
        corrected = seconds * exp(np.interp(size, sizes, ratios))
        return ExchangeCost(corrected, min(error, BARE_ERROR), name)
