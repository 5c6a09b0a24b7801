"""A cluster that is not there: what its workers, links and servers take of virtual time."""

from __future__ import annotations

import msgspec

from phalanx.core import words


class VirtualWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: a step of ``n`` samples takes ``fixed + each * n`` seconds."""

    fixed: float
    each: float
    update: float = 0.0
    """Seconds of the optimizer's step on all parameters."""
    evaluate: float = 0.0
    """Seconds of the evaluation after an epoch, by this worker alone."""
    bandwidth: float | None = None
    """Of its machine's link, bytes per second in each direction; ``None``: bytes take no time."""
    home: int | None = None
    """The number of its machine; ``None``: it is alone on one. Nothing that stays on a machine
    uses a link."""


class VirtualCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run in virtual time; all gradients are real."""

    workers: list[VirtualWorker]
    variation: float = 0.0
    """Standard deviation of a step's computing, as a share of its mean; lognormal."""
    latency: float = 0.0
    """Seconds of a message to the other side."""
    servers: tuple[int, ...] = (0,)
    """That keep the parameters, where a strategy has servers: on the machines of these workers."""
    failures: dict[int, int] = {}
    """Workers that are lost, and the step at which that happens, counted from 1."""

    def home(self, rank: int) -> int:
        """The machine of a worker."""
        own = self.workers[rank].home
        return -1 - rank if own is None else own

    @property
    def slowest_link(self) -> float | None:
        """Bytes per second."""
        found = [w.bandwidth for w in self.workers if w.bandwidth is not None]
        return min(found, default=None)

    @property
    def has_links(self) -> bool:
        """Whether exchanges take time."""
        return self.latency > 0.0 or self.slowest_link is not None

    def describe(self) -> str:
        """``links of 100 Mbit/s, 0.1 ms``."""
        parts = []
        rates = sorted({w.bandwidth for w in self.workers if w.bandwidth is not None})
        if rates:
            ends = [words.rate(rate * 8) for rate in (rates[0], rates[-1])]
            parts.append("links of " + (ends[0] if len(rates) == 1 else " to ".join(ends)))
        if self.latency:
            parts.append(words.seconds(self.latency))
        if self.variation:
            parts.append(f"jitter {words.rough_share(self.variation)}")
        lost = ", ".join(f"worker {r} at step {step}" for r, step in self.failures.items())
        return ", ".join([*parts, *([f"lost: {lost}"] if lost else [])])
