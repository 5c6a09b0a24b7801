"""The links between machines, as a probe measured them or as links usually are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from phalanx.pool.measured import CollectiveFigures, Probe, slowest
from phalanx.rules.collective_choice import MOST_DIRECT, USUAL_BANDWIDTH, USUAL_LATENCY, choose
from phalanx.rules.collective_cost import COSTS, MESSAGE_SECONDS, LinkSpeed

MEASURED_ERROR = 0.04
"""Of a collective on the machines that it was measured on."""
FORMULA_ERROR = 0.12
"""Of the formula, corrected by what was measured on other machines of the pool."""
BARE_ERROR = 0.25
"""Of the formula alone, from measured links."""
UNKNOWN_ERROR = 1.5
"""Of links that were not measured: Ethernet has 100 Mbit/s to 10 Gbit/s."""


@dataclass(frozen=True)
class ExchangeCost:
    """Seconds, and the share of them by which they may be wrong."""

    seconds: float
    error: float
    name: str = ""
    """The collective."""


class Network:
    """The links among the machines of a pool."""

    def __init__(self, probe: Probe | None, usual: LinkSpeed | None = None) -> None:
        self._probe = probe
        self._usual = usual or LinkSpeed(USUAL_LATENCY, USUAL_BANDWIDTH)
        self._figures: dict[str, list[CollectiveFigures]] = {}
        for each in probe.collectives if probe else ():
            self._figures.setdefault(each.name, []).append(each)
        for found in self._figures.values():
            found.sort(key=lambda each: each.bytes)
        self._out: dict[str, float] = {}
        self._into: dict[str, float] = {}
        for link in probe.links if probe else ():
            self._out[link.source] = max(self._out.get(link.source, 0.0), link.bandwidth)
            self._into[link.target] = max(self._into.get(link.target, 0.0), link.bandwidth)
        self._slowest: dict[frozenset[str], tuple[LinkSpeed, bool]] = {}

    def measured(self, names: Sequence[str]) -> bool:
        """Whether all links among them were."""
        return len(set(names)) <= 1 or self.link(names)[1]

    def sending(self, name: str) -> float:
        """Bytes a second that leave a machine: what the best link from it carries."""
        return self._out.get(name, self._usual.bandwidth)

    def receiving(self, name: str) -> float:
        return self._into.get(name, self._usual.bandwidth)

    def link(self, names: Sequence[str]) -> tuple[LinkSpeed, bool]:
        """The slowest among ``names``, and whether it was measured."""
        key = frozenset(names)
        if key not in self._slowest:
            found = slowest(self._probe, key) if self._probe else None
            overhead = self._probe.message_seconds if self._probe else None
            self._slowest[key] = (
                LinkSpeed(*(found or (self._usual.latency, self._usual.bandwidth)),
                          overhead if overhead is not None else MESSAGE_SECONDS),
                found is not None,
            )  # fmt: skip
        return self._slowest[key]

    def all_reduce(self, names: Sequence[str], count: float, topology: str | None) -> ExchangeCost:
        """Of ``count`` bytes among the first workers of these machines, as training does it."""
        if len(names) < 2:
            return ExchangeCost(0.0, 0.0)
        link, _ = self.link(names)
        # Training measures the latency itself, and takes the bandwidth for the usual one.
        chosen = choose(topology, len(names), int(count), link.latency)
        return self.collective(f"all_reduce.{chosen}", names, count)

    def all_gather(self, names: Sequence[str], count: float) -> ExchangeCost:
        """Of messages of ``count`` bytes each."""
        if len(names) < 2:
            return ExchangeCost(0.0, 0.0)
        ring = len(names) > MOST_DIRECT
        return self.collective("all_gather.ring" if ring else "all_gather", names, count)

    def collective(self, name: str, names: Sequence[str], count: float) -> ExchangeCost:
        link, known = self.link(names)
        seconds = COSTS[name](len(names), count).seconds(link)
        if not known:
            return ExchangeCost(seconds, UNKNOWN_ERROR, name)
        ratio, distance = self._ratio(name, count)
        if ratio is None:
            return ExchangeCost(seconds, BARE_ERROR, name)
        assert self._probe is not None
        same = set(names) == set(self._probe.participants)
        error = (MEASURED_ERROR if same else FORMULA_ERROR) + 0.05 * distance
        return ExchangeCost(seconds * ratio, min(error, BARE_ERROR), name)

    def _ratio(self, name: str, count: float) -> tuple[float | None, float]:
        """Measured by predicted at that size, and how far the next measured size is (in tens)."""
        found = self._figures.get(name)
        if not found:
            return None, 0.0
        sizes = [each.bytes for each in found]
        at = bisect_left(sizes, count)
        if at == 0 or at == len(found):
            nearest = found[0 if at == 0 else -1]
            return nearest.ratio, abs(log(max(count, 1.0) / nearest.bytes)) / log(10)
        before, after = found[at - 1], found[at]
        part = log(count / before.bytes) / log(after.bytes / before.bytes)
        mixed = exp((1 - part) * log(before.ratio) + part * log(after.ratio))
        return mixed, min(part, 1 - part)
