"""Free strategies by the event engine: pushes and replies share links, workers meet at servers."""

from __future__ import annotations

from math import inf

import numpy as np

from phalanx.core.spec import Phase
from phalanx.plan.cost.free import ASKING_SECONDS, traffic_of
from phalanx.plan.cost.network import Network
from phalanx.plan.cost.selected_workers import SelectedWorkers
from phalanx.plan.job import JobProfile
from phalanx.plan.timing.cluster import FreeCluster
from phalanx.plan.timing.free import run_free
from phalanx.rules.admission import Dynamic, Free, Rule, Stale

ROUNDS = 60
"""Steps of each worker that are played: a few hundred pushes settle the pace of a small pool."""
EDGE = 0.15


def seconds_by_events(
    job: JobProfile, team: SelectedWorkers, network: Network, phase: Phase
) -> float:
    """Of one global batch."""
    traffic = traffic_of(job, team, network, phase)
    apart = len(team.hosts) > 1
    places = {name: place for place, name in enumerate(team.hosts)}
    asking = ASKING_SECONDS if apart else 0.0
    cluster = FreeCluster(
        compute=[crew.computing + traffic.coding + asking for crew in traffic.crews],
        variation=team.variation,
        homes=[places[crew.home] for crew in traffic.crews],
        servers=[places[name] for name in traffic.servers],
        push_bytes=traffic.push,
        reply_bytes=traffic.reply,
        sending=[network.sending(name) if apart else inf for name in team.hosts],
        receiving=[network.receiving(name) if apart else inf for name in team.hosts],
        latency=network.link(team.hosts)[0].latency if apart else 0.0,
        update=traffic.update,
    )
    rule = _rule(phase)
    # Whoever is quick takes more chunks, unless the rule holds all to the same number of steps.
    by_samples = isinstance(rule, Free)
    pushes: list[tuple[float, float]] = []

    def note(rank: int, step: int, start: float, admitted: float, version: int) -> None:
        pushes.append((admitted, traffic.crews[rank].samples))

    run_free(cluster, rule, ROUNDS, seed=0, by_samples=by_samples, trace=note)
    return job.batch / _pace(pushes)


def _pace(pushes: list[tuple[float, float]]) -> float:
    """Samples a second, without the first and the last pushes: all begin at once, and at the end
    some have nothing left to do."""
    times, samples = np.array(sorted(pushes)).T
    middle = slice(int(EDGE * len(times)), max(2, int((1.0 - EDGE) * len(times))))
    when, done = times[middle], np.cumsum(samples)[middle]
    when = when - when.mean()
    return float((when * (done - done.mean())).sum() / (when * when).sum())


def _rule(phase: Phase) -> Rule:
    options = phase.options
    if phase.name == "ssp":
        return Stale(int(options.get("bound", 3)))
    if phase.name == "dssp":
        return Dynamic(int(options.get("low", 2)), int(options.get("high", 8)))
    return Free()
