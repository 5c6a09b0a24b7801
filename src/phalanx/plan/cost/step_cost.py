"""What one global batch costs under one phase of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import hypot
from statistics import NormalDist

from phalanx.core.spec import Phase
from phalanx.plan.cost.codec_costs import CodecCost, codec_cost
from phalanx.plan.cost.network import Network
from phalanx.plan.cost.selected_workers import SelectedWorkers
from phalanx.plan.job import JobProfile
from phalanx.plan.servers import Host, place_servers

MEMORY_SPEED = 4e9
"""Bytes per second at which a worker sums gradients in shared memory (2-core ARM machine)."""
BARRIER_SECONDS = 60e-6
"""Seconds that two barriers among the workers of one host take."""


@dataclass(frozen=True)
class Setup:
    """A job, its workers, their links, and one phase of a strategy."""

    job: JobProfile
    team: SelectedWorkers
    network: Network
    phase: Phase

    @property
    def apart(self) -> bool:
        """Whether the workers are on several hosts, with network links between them."""
        return len(self.team.hosts) > 1

    @cached_property
    def codec(self) -> CodecCost:
        return codec_cost(self.phase.codec)

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """The hosts whose servers hold the parameters, placed as the run will place them."""
        known, hosts = self.network.measured(self.team.hosts), self.team.per_host.items()
        places = [Host(n, 8.0 * self.network.rate(n) if known else None, w) for n, w in hosts]
        wish = self.phase.options.get("servers")
        return tuple(place_servers(places, int(wish) if wish is not None else None))

    @cached_property
    def handling(self) -> dict[str, float]:
        """For each host, seconds of computing that it loses per byte that it sends or receives."""
        busy = {m.host for m in self.team.members if not m.spare} if self.apart else set()
        return {h: self.network.handling(h) if h in busy else 0.0 for h in self.team.hosts}

    @property
    def sum_in_memory(self) -> float:
        """Seconds that workers of one host take to add up their gradients."""
        return BARRIER_SECONDS + self.job.gradient_bytes / MEMORY_SPEED

    @property
    def link_words(self) -> str:
        """The slowest link, in words for the plan."""
        if not self.apart:
            return "memory"
        rates = {host: self.network.rate(host) for host in self.team.hosts}
        slowest = min(rates, key=rates.__getitem__)
        alike = max(rates.values()) < 1.2 * rates[slowest]
        return "the links" if alike else f"the link of {slowest}"


@dataclass(frozen=True)
class StepCost:
    """Where the seconds of one global batch go."""

    computing: float
    """Seconds of the worker that computes longest, with its update."""
    exchange: float
    """Seconds of exchange that are not hidden behind computing."""
    error: float
    """Error of ``seconds``, as a share of them."""
    samples: Sequence[float]
    busy: Sequence[float]
    """Seconds that each worker computes."""
    slowest: str
    """The machine that computes longest."""
    link: str = "nothing"
    """What the exchange waits for, in words."""
    servers: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return self.computing + self.exchange


@lru_cache(maxsize=256)
def lateness(workers: int) -> float:
    """How late the slowest worker is on average, in standard deviations of a step (Blom)."""
    if workers < 2:
        return 0.0
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def combined(*parts: tuple[float, float]) -> float:
    """The error of the sum of (seconds, error) parts with independent errors, as a share."""
    whole = sum(seconds for seconds, _ in parts)
    return hypot(*(seconds * error for seconds, error in parts)) / whole if whole > 0.0 else 0.0
