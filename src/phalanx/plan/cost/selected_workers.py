"""The workers of a selection: where they are, what they compute, how a batch is shared out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log2

from phalanx.core.errors import InputError
from phalanx.plan.job import JobProfile, MachineCosts
from phalanx.plan.placement import natural_workers, share_out
from phalanx.policies.fitting_shares import fitting_shares
from phalanx.pool.machine import Machine

CROWDED_ERROR = 0.25
"""Error of workers that share the cores or the GPU that one worker had when it was measured."""
BEYOND_ERROR = 0.04
"""Error of each doubling beyond the batches that were measured."""
MOST_BEYOND = 0.4


@dataclass(frozen=True)
class Member:
    """One worker."""

    machine: str
    host: str
    """The host of its memory; messages go between hosts. Machines of one computer are one host."""
    costs: MachineCosts
    crowding: float = 1.0
    """How many workers share the cores or the GPU that one had when it was measured."""
    spare: bool = True
    """Whether another core handles messages while it computes."""

    @property
    def curve(self) -> tuple[float, float]:
        work = self.costs.work
        return work.fixed * self.crowding, (work.each + self.costs.input) * self.crowding

    def seconds(self, samples: float) -> float:
        fixed, each = self.curve
        return fixed + each * samples

    def error(self, samples: float) -> float:
        """Error of the seconds of that many samples, as a share."""
        work = self.costs.work
        beyond = max(samples / max(work.largest, 1), work.smallest / max(samples, 1.0), 1.0)
        found = work.error + min(MOST_BEYOND, BEYOND_ERROR * log2(beyond))
        return found + (CROWDED_ERROR if self.crowding > 1.0 else 0.0)


@dataclass(frozen=True)
class SelectedWorkers:
    """All workers, by rank."""

    members: tuple[Member, ...]
    batch: int
    overlaps: bool
    """Whether gradients are sent during the backward pass: only without GPUs and encryption."""

    @cached_property
    def per_host(self) -> Counter[str]:
        """The number of workers on each host."""
        return Counter(member.host for member in self.members)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self.per_host)

    @cached_property
    def variation(self) -> float:
        return max(member.costs.work.variation for member in self.members)

    @cached_property
    def samples(self) -> list[float]:
        """Samples of each worker, at least one, with which all are done at the same time."""
        parts = fitting_shares([member.curve for member in self.members], self.batch)
        few = [max(1.0, part) for part in parts]
        spare, above = self.batch - sum(few), sum(few) - len(few)
        if spare == 0.0 or above <= 0.0:
            return few
        return [1.0 + (part - 1.0) * (above + spare) / above for part in few]


def form_team(
    job: JobProfile, machines: Sequence[Machine], workers: int | None = None
) -> SelectedWorkers:
    """Place ``workers``; ``None``: one for each GPU, and one for each machine without a GPU."""
    if missing := [machine.name for machine in machines if machine.name not in job.costs]:
        raise InputError(f"the job was not measured on {missing[0]}", "Plan again without --quick.")
    shares = share_out(machines, natural_workers(machines) if workers is None else workers)
    used = [(m, share) for m, share in zip(machines, shares, strict=True) if share]
    together = all(machine.is_here for machine, _ in used)  # one memory
    members: list[Member] = []
    for machine, share in used:
        host = used[0][0].name if together else machine.name
        crowding = max(1.0, share / natural_workers([machine]))
        spare = machine.cores is None or machine.cores > share
        members += [Member(machine.name, host, job.costs[machine.name], crowding, spare)] * share
    overlaps = not any(machine.gpus or machine.tls for machine, _ in used)
    return SelectedWorkers(tuple(members), job.batch, overlaps)
