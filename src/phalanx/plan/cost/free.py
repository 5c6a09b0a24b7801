"""Strategies whose workers, or groups of them, do not wait for each other at every step."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.spec import Phase
from phalanx.plan.cost.codec_costs import codec_cost
from phalanx.plan.cost.lockstep import link_words, servers_of
from phalanx.plan.cost.network import UNKNOWN_ERROR, Network
from phalanx.plan.cost.selected_workers import Member, SelectedWorkers
from phalanx.plan.cost.step_cost import BARRIER_SECONDS, MEMORY_SPEED, StepCost, combined, lateness
from phalanx.plan.job import JobProfile

ASKING_SECONDS = 0.5e-3
"""What a push costs besides its bytes: claiming samples, requests, copies (``hosts-steps``)."""
FLUID_ERROR = 0.5
"""Of the closed form, which leaves out how pushes meet at a server: rather a floor."""
ENGINE_ERROR = 0.06
"""Of the event engine on shared links."""
GROUP_SIZE = 2


@dataclass(frozen=True)
class Crew:
    """What pushes as one: a worker, or a group."""

    members: tuple[int, ...]
    home: str
    samples: float
    computing: float
    """With what it takes to sum inside a group."""


@dataclass(frozen=True)
class StoreTraffic:
    """What the crews and the servers do to each other."""

    crews: list[Crew]
    servers: tuple[str, ...]
    push: float
    """Bytes of a crew's push, to all servers together."""
    reply: float
    update: float
    """Seconds of one server's update with one push."""
    coding: float
    """Seconds of a push that its sender encodes."""
    bound: int | None
    """Steps that a crew may be ahead of the slowest; ``None``: any."""


def traffic_of(
    job: JobProfile, team: SelectedWorkers, network: Network, phase: Phase
) -> StoreTraffic:
    codec = codec_cost(phase.codec)
    crews = _crews(job, team, network, phase)
    servers = servers_of(team, network, phase) if len(team.hosts) > 1 else (team.hosts[0],)
    size = float(job.gradient_bytes)
    updates = {m.machine: m.costs.update for m in team.members}
    slowest = max(updates.get(name, 0.0) for name in servers)
    bound = {"ssp": int(phase.options.get("bound", 3)), "dssp": int(phase.options.get("high", 8))}
    return StoreTraffic(
        crews=crews,
        servers=servers,
        push=size * codec.ratio,
        reply=size,
        update=(slowest + size * codec.decode) / len(servers),
        coding=size * codec.encode,
        bound=bound.get(phase.name),
    )


def free_cost(
    job: JobProfile,
    team: SelectedWorkers,
    network: Network,
    phase: Phase,
    seconds: float | None = None,
) -> StepCost:
    """``seconds``: of a global batch, from the engine; else the closed form."""
    traffic = traffic_of(job, team, network, phase)
    found = fluid_seconds(job, team, network, traffic) if seconds is None else seconds
    turns = [job.batch and crew.samples / job.batch for crew in traffic.crews]
    error = _error(team, network, traffic, found, closed=seconds is None)
    samples, busy = [0.0] * len(team.members), [0.0] * len(team.members)
    for crew in traffic.crews:
        for rank in crew.members:
            samples[rank] = crew.samples / len(crew.members)
            busy[rank] = min(found, crew.computing)
    slowest = max(traffic.crews, key=lambda crew: crew.computing)
    computing = min(found, sum(c.computing * t for c, t in zip(traffic.crews, turns, strict=True)))
    return StepCost(
        found,
        error,
        computing,
        found - computing,
        samples,
        busy,
        slowest.home,
        link_words(team, network),
        traffic.servers if len(team.hosts) > 1 else (),
    )


def fluid_seconds(
    job: JobProfile, team: SelectedWorkers, network: Network, traffic: StoreTraffic
) -> float:
    """Seconds of a global batch: crews at their own pace, slowed where a server's link is full."""
    alone = [_cycle(crew, team, network, traffic) for crew in traffic.crews]
    if traffic.bound is not None:
        alone = [max(alone)] * len(alone)
    rates = [1.0 / cycle for cycle in alone]
    load = _load(rates, team, network, traffic)
    throughput = sum(
        crew.samples * rate / (load if crew.home in load_bound(team, traffic) else 1.0)
        for crew, rate in zip(traffic.crews, rates, strict=True)
    )
    if traffic.bound is not None:
        throughput = sum(c.samples for c in traffic.crews) / (alone[0] * load)
    return job.batch / throughput


def load_bound(team: SelectedWorkers, traffic: StoreTraffic) -> set[str]:
    """Homes whose pushes cross a link."""
    if len(team.hosts) == 1:
        return {team.hosts[0]}
    return {c.home for c in traffic.crews if set(traffic.servers) != {c.home}}


def _cycle(crew: Crew, team: SelectedWorkers, network: Network, traffic: StoreTraffic) -> float:
    """One step of a crew that meets nobody."""
    busy = crew.computing + traffic.coding + traffic.update * len(traffic.servers)
    if len(team.hosts) == 1:
        return busy + (traffic.push + traffic.reply) / MEMORY_SPEED
    away = sum(name != crew.home for name in traffic.servers) / len(traffic.servers)
    latency = network.link(team.hosts)[0].latency
    out = min(network.sending(crew.home), sum(network.receiving(s) for s in traffic.servers))
    back = min(network.receiving(crew.home), sum(network.sending(s) for s in traffic.servers))
    moving = away * (traffic.push / out + traffic.reply / back)
    return busy + moving + 2.0 * latency * (away > 0) + ASKING_SECONDS


def _load(
    rates: list[float], team: SelectedWorkers, network: Network, traffic: StoreTraffic
) -> float:
    """How much more the busiest server is asked for than it can do; 1 if it can."""
    worst, count = 1.0, len(traffic.servers)
    for name in set(traffic.servers):
        part = traffic.servers.count(name) / count
        worst = max(worst, sum(rates) * traffic.update * traffic.servers.count(name))
        if len(team.hosts) == 1:
            continue
        pairs = zip(traffic.crews, rates, strict=True)
        remote = sum(rate for crew, rate in pairs if crew.home != name)
        own = sum(rates) - remote
        into = remote * traffic.push * part + own * traffic.reply * (1.0 - part)
        out = remote * traffic.reply * part + own * traffic.push * (1.0 - part)
        worst = max(worst, into / network.receiving(name), out / network.sending(name))
    return worst


def _error(
    team: SelectedWorkers, network: Network, traffic: StoreTraffic, seconds: float, *, closed: bool
) -> float:
    computing = max(
        team.members[rank].error(crew.samples / len(crew.members))
        for crew in traffic.crews
        for rank in crew.members
    )
    moving = FLUID_ERROR if closed else ENGINE_ERROR
    if not network.measured(team.hosts):
        moving = UNKNOWN_ERROR
    longest = max(crew.computing for crew in traffic.crews)
    part = min(1.0, longest / max(seconds, 1e-12))
    return combined([(part, computing), (1.0 - part, moving)]) + (moving * part * 0.5)


def _crews(job: JobProfile, team: SelectedWorkers, network: Network, phase: Phase) -> list[Crew]:
    count = len(team.members)
    equal = [job.batch / count] * count
    samples = team.samples if phase.traits.balanced else equal
    groups = _groups(team, phase) if phase.traits.grouped else [(rank,) for rank in range(count)]
    return [_crew(job, team, network, ranks, samples) for ranks in groups]


def _crew(
    job: JobProfile,
    team: SelectedWorkers,
    network: Network,
    ranks: tuple[int, ...],
    samples: list[float],
) -> Crew:
    works = [team.members[rank].seconds(samples[rank]) for rank in ranks]
    hosts = tuple(dict.fromkeys(team.host_of(team.members[rank]) for rank in ranks))
    inside = network.all_reduce(hosts, job.gradient_bytes, None).seconds
    if len(ranks) > len(hosts):
        inside += BARRIER_SECONDS + job.gradient_bytes / MEMORY_SPEED
    computing = max(works) * (1.0 + team.variation * lateness(len(ranks))) + inside
    return Crew(ranks, hosts[0], sum(samples[rank] for rank in ranks), computing)


def _groups(team: SelectedWorkers, phase: Phase) -> list[tuple[int, ...]]:
    size, by = int(phase.options.get("size", GROUP_SIZE)), phase.options.get("by", "rank")
    ranks = list(range(len(team.members)))
    if by == "machine":
        homes: dict[str, list[int]] = {}
        for rank in ranks:
            homes.setdefault(team.host_of(team.members[rank]), []).append(rank)
        return [tuple(found) for found in homes.values()]
    if by == "speed":
        ranks.sort(key=lambda rank: _per_sample(team.members[rank]))
    return [tuple(ranks[i : i + size]) for i in range(0, len(ranks), size)]


def _per_sample(member: Member) -> float:
    return member.curve[1]
