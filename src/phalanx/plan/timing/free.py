"""Simulates strategies whose workers go on alone, with the engine that suits the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phalanx.plan.timing.flows import run_flows
from phalanx.plan.timing.heap import run_heap
from phalanx.plan.timing.work import Floats, FreeCluster, Lost, Outcome, StepDraws, Trace, Work
from phalanx.policies.admission import Free, Rule

MOST_FLOWS = 512
"""If workers times servers are more than this, links are queues instead of exact shares."""


def run_free(
    cluster: FreeCluster,
    rule: Rule,
    steps: int,
    *,
    seed: int,
    by_samples: bool = False,
    lost: Lost = (),
    draws: Floats | None = None,
    trace: Trace | None = None,
) -> Outcome:
    """Simulate ``steps`` of each worker; ``by_samples``: as many in all, but fast workers do more.

    ``async`` is the rule ``Free``, ``ssp`` is ``Stale``, ``bsp`` is ``Stale(0)`` and ``dssp`` is
    ``Dynamic``. A lost worker stops; with ``by_samples`` the others do its steps. ``draws``:
    seconds to use, a row for each worker. A ``trace`` makes it slow.
    """
    limited = cluster.limited
    if limited and len(cluster.compute) * len(cluster.servers) > MOST_FLOWS:
        before, cluster, limited = np.asarray(cluster.compute), cluster.queued(), False
        draws = None if draws is None else draws + (cluster.compute - before)[:, None]
    drawn = StepDraws(cluster.compute, cluster.variation, seed, draws)
    work = Work(drawn, steps, lost=lost, by_samples=by_samples)
    if limited:
        return run_flows(work, rule, cluster, trace)
    return run_heap(work, rule, cluster.latency, cluster.update, trace)


def run_groups(
    cluster: FreeCluster,
    teams: Sequence[Sequence[int]],
    exchange: Sequence[float],
    steps: int,
    *,
    seed: int,
    by_samples: bool = False,
    draws: Floats | None = None,
    trace: Trace | None = None,
) -> Outcome:
    """Simulate the strategy ``groups``: members of a team meet for ``exchange`` seconds each step.

    Then the team pushes like one worker at its first member's home. ``trace`` gets team numbers.
    """
    single = StepDraws(cluster.compute, cluster.variation, seed, draws).block(0, steps).T
    spent = np.stack([single[list(team)].max(axis=0) for team in teams])
    table = spent + np.asarray(exchange)[:, None]
    homes = [cluster.homes[team[0]] for team in teams]
    grouped = replace(cluster, compute=table.mean(axis=1), homes=homes)
    found = run_free(
        grouped, Free(), steps, seed=seed, by_samples=by_samples, draws=table, trace=trace
    )
    waited, done = np.zeros(len(single)), np.zeros(len(single), np.int64)
    for number, team in enumerate(teams):
        idle = (spent[number] - single[list(team)]).sum(axis=1)
        waited[list(team)], done[list(team)] = found.waited[number] + idle, found.done[number]
    return replace(found, waited=waited, done=done)
