"""Strategies whose workers step together, or train apart and meet every so many batches."""

from __future__ import annotations

from math import sqrt

from phalanx.core.spec import Phase
from phalanx.plan.cost.codec_costs import ERROR as CODEC_ERROR
from phalanx.plan.cost.codec_costs import CodecCost, codec_cost
from phalanx.plan.cost.network import ExchangeCost, Network
from phalanx.plan.cost.selected_workers import SelectedWorkers
from phalanx.plan.cost.step_cost import (
    BARRIER_SECONDS,
    MEETING_SECONDS,
    MEMORY_SPEED,
    StepCost,
    combined,
    lateness,
)
from phalanx.plan.job import JobProfile
from phalanx.plan.servers import Host, place_servers

EVERY = {"localsgd": 8, "diloco": 50}
LEAST_AHEAD = 64 << 10
"""Bytes; less does not go ahead of its step."""
OVERLAPPED = 0.85
"""Of what could be sent while computing, the part that is: moving bytes takes the processor too
(``hosts-ahead``: 49.8 ms a step instead of 57.9)."""
STORE_ERROR = 0.1


def alone_cost(job: JobProfile, team: SelectedWorkers) -> StepCost:
    """One worker with the whole batch."""
    (member,) = team.members
    work = member.seconds(job.batch) + member.costs.update
    error = member.error(job.batch)
    return StepCost(work, error, work, 0.0, [float(job.batch)], [work], member.machine)


def lockstep_cost(
    job: JobProfile, team: SelectedWorkers, network: Network, phase: Phase
) -> StepCost:
    """``allreduce``, ``bsp``, ``localsgd`` and ``diloco``."""
    samples = team.samples
    works = [m.seconds(n) for m, n in zip(team.members, samples, strict=True)]
    # Slices of a host's parameters are updated by its workers, each its own; apart, all of them.
    apart = phase.traits.local or not job.elementwise
    parts = [1 if apart else team.per_host[team.host_of(m)] for m in team.members]
    updates = [m.costs.update / part for m, part in zip(team.members, parts, strict=True)]
    if phase.name == "bsp":
        updates = [0.0] * len(updates)
    busy = [work + update for work, update in zip(works, updates, strict=True)]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    every = int(phase.options.get("every", EVERY.get(phase.name, 8))) if phase.traits.local else 1
    spread = team.variation / sqrt(every)
    computing = busy[slowest] * (1.0 + spread * lateness(len(busy)))
    exchange, servers = _exchange(job, team, network, phase, works[slowest])
    exchange_seconds = exchange.seconds / every
    error = combined(
        [
            (computing, team.members[slowest].error(samples[slowest])),
            (exchange_seconds, exchange.error),
        ]
    )
    return StepCost(
        computing + exchange_seconds,
        error,
        computing,
        exchange_seconds,
        samples,
        busy,
        team.members[slowest].machine,
        link_words(team, network),
        servers,
    )


def link_words(team: SelectedWorkers, network: Network) -> str:
    """The slowest link, as people say it."""
    if len(team.hosts) < 2:
        return "memory"
    rates = {h: min(network.sending(h), network.receiving(h)) for h in team.hosts}
    low, high = min(rates.values()), max(rates.values())
    if high < 1.2 * low:
        return "the links"
    return f"the link of {min(rates, key=rates.__getitem__)}"


def _exchange(
    job: JobProfile, team: SelectedWorkers, network: Network, phase: Phase, computing: float
) -> tuple[ExchangeCost, tuple[str, ...]]:
    """What a meeting of all takes beside computing."""
    codec = codec_cost(phase.codec)
    most = max(team.per_host.values())
    size = job.gradient_bytes
    inside = BARRIER_SECONDS + size / MEMORY_SPEED if most > 1 else 0.0
    if len(team.hosts) == 1:
        coded = size * (codec.encode + codec.decode)
        return ExchangeCost(inside + coded, 0.5), ()
    if phase.name == "bsp":
        found, servers = _through_store(job, team, network, phase, codec)
    else:
        found, servers = _collective(job, team, network, phase, codec, computing), ()
    extra = inside + MEETING_SECONDS + 2.0 * network.link(team.hosts)[0].latency
    error = combined([(found.seconds, found.error), (extra, 0.5)])
    return ExchangeCost(found.seconds + extra, error), servers


def _collective(
    job: JobProfile,
    team: SelectedWorkers,
    network: Network,
    phase: Phase,
    codec: CodecCost,
    computing: float,
) -> ExchangeCost:
    size, hosts = job.gradient_bytes, team.hosts
    if phase.codec is not None:
        sent = network.all_gather(hosts, size * codec.ratio)
        coding = size * (codec.encode + len(hosts) * codec.decode)
        unsure = CODEC_ERROR if codec.certain else 2 * CODEC_ERROR
        error = combined([(sent.seconds, sent.error), (coding, unsure)])
        return ExchangeCost(sent.seconds + coding, error)
    topology = phase.options.get("topology")
    found = network.all_reduce(hosts, size, str(topology) if topology else None)
    goes_ahead = (
        phase.name == "allreduce"
        and found.name == "all_reduce.direct"
        and size >= LEAST_AHEAD
        and len(team.members) == len(hosts)
        and "through" not in phase.options
    )
    if not goes_ahead:
        return found
    # Of two hosts each sends all at once; of more, what comes back goes after the sum.
    early = found.seconds if len(hosts) == 2 else found.seconds / 2
    hidden = OVERLAPPED * (early - _left_after(job, early, computing))
    return ExchangeCost(found.seconds - hidden, found.error + 0.1 * hidden / found.seconds)


def _left_after(job: JobProfile, sending: float, computing: float) -> float:
    """Seconds of sending that remain when the last gradient is there: pieces go in order."""
    free_at = 0.0
    for share, ready in job.ready:
        free_at = max(free_at, ready * computing) + share * sending
    return min(sending, max(0.0, free_at - computing))


def _through_store(
    job: JobProfile, team: SelectedWorkers, network: Network, phase: Phase, codec: CodecCost
) -> tuple[ExchangeCost, tuple[str, ...]]:
    """All push at once, the servers update, all get the parameters back."""
    servers = servers_of(team, network, phase)
    part = 1.0 / len(servers)
    held = {host: part * servers.count(host) for host in team.hosts}
    size, wire = job.gradient_bytes, job.gradient_bytes * codec.ratio
    others = len(team.hosts) - 1
    pushing = max(
        max(wire * (1.0 - held[h]) / network.sending(h),
            wire * held[h] * others / network.receiving(h))
        for h in team.hosts
    )  # fmt: skip
    replying = max(
        max(size * (1.0 - held[h]) / network.receiving(h),
            size * held[h] * others / network.sending(h))
        for h in team.hosts
    )  # fmt: skip
    updates = {m.machine: m.costs.update for m in team.members}
    update = max(updates[h] * held[h] for h in team.hosts)
    coding = size * (codec.encode + codec.decode * (others + 1) * max(held.values()))
    link, known = network.link(team.hosts)
    seconds = pushing + replying + update + coding + 2.0 * link.latency
    error = STORE_ERROR if known else 1.5
    return ExchangeCost(seconds, error), servers


def servers_of(team: SelectedWorkers, network: Network, phase: Phase) -> tuple[str, ...]:
    """Where the parameters are, as the run will place them."""
    known = network.measured(team.hosts)
    hosts = [
        Host(
            name,
            8.0 * min(network.sending(name), network.receiving(name)) if known else None,
            team.per_host[name],
        )
        for name in team.hosts
    ]
    wish = phase.options.get("servers")
    return tuple(place_servers(hosts, int(wish) if wish is not None else None))
