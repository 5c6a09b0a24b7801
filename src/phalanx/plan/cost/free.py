"""The cost of strategies whose workers or groups do not wait for each other at every step."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from phalanx.plan.cost.network import UNKNOWN_ERROR
from phalanx.plan.cost.step_cost import Setup, StepCost, combined, lateness
from phalanx.plan.timing.free import run_free
from phalanx.plan.timing.work import FreeCluster
from phalanx.policies.admission import Free, Rule, rule_of
from phalanx.policies.grouping import Team, teams_of

PUSH_SECONDS = 1.0e-3
"""What a push costs besides its bytes: claiming samples, requests (``predictions``)."""
HANDLING = 0.9e-9
"""Seconds of each byte of a push and its reply, besides the link: copies on both sides. Pushes of
1 and 2 MB took 2.0 and 2.9 ms more beside their server, 0.7 and 1.5 more through a link."""
ROUGH_ERROR = 0.5
"""Error if links are queues: these ignore that pushes collide at a server, so costs are too low."""
ENGINE_ERROR = 0.06
"""Error of the event engine on shared links."""
ROUNDS = 60
"""Simulated steps of each worker: a few hundred pushes show the pace of a small pool."""
EDGE = 0.15


def free_cost(setup: Setup, *, exact: bool) -> StepCost:
    """The cost of a step; ``exact``: simulated by events, instead of with queues for links."""
    job, team, phase = setup.job, setup.team, setup.phase
    count = len(team.members)
    samples = team.samples if phase.traits.balanced else [job.batch / count] * count
    crews: list[Team] = [(rank,) for rank in range(count)]  # each pushes as one
    if phase.traits.grouped:
        speeds = [1.0 / m.seconds(job.batch / count) for m in team.members]
        crews = teams_of(phase, count, lambda: [m.host for m in team.members], speeds)
    computing = [_computing(setup, crew, samples) for crew in crews]
    pushed = [sum(samples[rank] for rank in crew) for crew in crews]
    rule = rule_of(phase.name, phase.options)
    computing = _with_handling(setup, crews, computing, by_pace=isinstance(rule, Free))
    pace = (_played if exact else _rough)(_cluster(setup, crews, computing), rule, pushed)
    seconds = job.batch / pace
    unsure = ENGINE_ERROR if exact else ROUGH_ERROR
    if not setup.network.measured(team.hosts):
        unsure = UNKNOWN_ERROR
    part = min(1.0, max(computing) / max(seconds, 1e-12))
    error = max(member.error(n) for member, n in zip(team.members, samples, strict=True))
    mean = min(seconds, float(np.dot(computing, pushed)) / job.batch)
    busy = {r: min(seconds, s) for crew, s in zip(crews, computing, strict=True) for r in crew}
    return StepCost(
        mean,
        seconds - mean,
        combined((part, error), (1.0 - part, unsure)) + unsure * part * 0.5,
        samples,
        [busy[rank] for rank in range(count)],
        team.members[crews[int(np.argmax(computing))][0]].machine,
        setup.link_words,
        setup.servers if setup.apart else (),
    )


def _computing(setup: Setup, crew: Team, samples: Sequence[float]) -> float:
    """Seconds of a crew's slowest worker, and of the sum inside the crew."""
    members = [setup.team.members[rank] for rank in crew]
    longest = max(m.seconds(samples[rank]) for rank, m in zip(crew, members, strict=True))
    hosts = tuple(dict.fromkeys(member.host for member in members))
    inside = setup.network.exchange(hosts, setup.job.gradient_bytes).seconds
    inside += setup.sum_in_memory if len(crew) > len(hosts) else 0.0
    return longest * (1.0 + setup.team.variation * lateness(len(crew))) + inside


def _with_handling(
    setup: Setup, crews: Sequence[Team], computing: Sequence[float], *, by_pace: bool
) -> list[float]:
    """On machines without a spare core, pushes of others to a server beside a worker take it from
    computing. (A worker's own take the processor while the link is waited for.) ``by_pace``: a
    quick crew makes more steps than a slow one."""
    homes = [setup.team.members[crew[0]].host for crew in crews]
    each = setup.job.gradient_bytes * (1.0 + setup.codec.ratio) if setup.apart else 0.0
    servers, found = setup.servers if setup.apart else (), []
    for home, own in zip(homes, computing, strict=True):
        held = servers.count(home) / max(len(servers), 1)
        others = sum(
            own / other if by_pace else 1.0
            for host, other in zip(homes, computing, strict=True)
            if host != home
        )
        found.append(own + each * held * others * setup.handling[home])
    return found


def _cluster(setup: Setup, crews: Sequence[Team], computing: Sequence[float]) -> FreeCluster:
    team, network, apart, codec = setup.team, setup.network, setup.apart, setup.codec
    size, places = float(setup.job.gradient_bytes), {h: i for i, h in enumerate(team.hosts)}
    servers = setup.servers if apart else team.hosts
    updates = {m.host: m.costs.update for m in team.members}
    update = max(updates[name] for name in servers) + size * codec.coding
    asking = PUSH_SECONDS + size * HANDLING if apart else 0.0
    return FreeCluster(
        compute=np.add(computing, size * codec.coding + asking),
        variation=team.variation,
        homes=[places[team.members[crew[0]].host] for crew in crews],
        servers=[places[name] for name in servers],
        push_bytes=size * codec.ratio,
        reply_bytes=size,
        sending=[network.sending(host) if apart else inf for host in team.hosts],
        receiving=[network.receiving(host) if apart else inf for host in team.hosts],
        latency=network.link(team.hosts)[0].latency if apart else 0.0,
        update=update / len(servers),
    )


def _rough(cluster: FreeCluster, rule: Rule, samples: Sequence[float]) -> float:
    """Samples a second if each crew has its own pace, or a slower one if a server is saturated."""
    queued = cluster.queued()
    cycles = np.asarray(queued.compute) + cluster.update + 2.0 * cluster.latency
    free = isinstance(rule, Free)
    if not free:
        cycles[:] = cycles.max()  # all go with the slowest
    load = np.full(len(cycles), max(1.0, float((1.0 / cycles).sum()) * queued.update))
    if free and cluster.limited:  # a worker beside the only server does not wait for links
        load[[set(cluster.servers) == {home} for home in cluster.homes]] = 1.0
    return float((np.asarray(samples) / cycles / load).sum())


def _played(cluster: FreeCluster, rule: Rule, samples: Sequence[float]) -> float:
    """The steady part of what the engine plays.

    The first and the last pushes are left out: all begin at once, and at the end some have nothing
    left to do.
    """
    pushes: list[tuple[float, float]] = []

    def note(rank: int, step: int, start: float, admitted: float, version: int) -> None:
        pushes.append((admitted, samples[rank]))

    # Quick workers take more chunks, unless the rule gives all the same number of steps.
    run_free(cluster, rule, ROUNDS, seed=0, by_samples=isinstance(rule, Free), trace=note)
    times, done = np.array(sorted(pushes)).T
    middle = slice(int(EDGE * len(times)), max(2, int((1.0 - EDGE) * len(times))))
    return float(np.polyfit(times[middle], np.cumsum(done)[middle], 1)[0])
