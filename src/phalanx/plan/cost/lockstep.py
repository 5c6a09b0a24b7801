"""The cost of strategies whose workers step together, or meet every few batches."""

from __future__ import annotations

from math import sqrt

from phalanx.core.spec import Phase
from phalanx.plan.cost.network import UNKNOWN_ERROR, ExchangeCost
from phalanx.plan.cost.step_cost import Setup, StepCost, combined, lateness
from phalanx.plan.job import JobProfile

MEETING_SECONDS = 0.6e-3
"""Seconds of a step between hosts besides its collective: barriers and copies (``hosts-steps``:
14.1 ms a step, of which 4.4 are computing and 8.9 the link)."""
LEAST_AHEAD = 64 << 10
"""Gradients of fewer bytes are not sent before the backward pass ends."""
OVERLAPPED = 0.85
"""The part of early sending that does run beside computing; the rest is lost, because moving bytes
takes processor time too (``hosts-ahead``: 49.8 ms a step instead of 57.9)."""
STORE_ERROR = 0.1
UNSURE = 0.5
"""Error of the seconds for copies, barriers and small messages."""


def steps_between_meetings(phase: Phase) -> int:
    default = 50 if phase.name == "diloco" else 8
    return int(phase.options.get("every", default)) if phase.traits.local else 1


def lockstep_cost(setup: Setup) -> StepCost:
    """The cost of a step of ``single``, ``allreduce``, ``bsp``, ``localsgd`` or ``diloco``."""
    job, team, phase = setup.job, setup.team, setup.phase
    members, samples = team.members, team.samples
    works = [m.seconds(n) for m, n in zip(members, samples, strict=True)]
    through_store = phase.name == "bsp" and setup.apart
    busy = works
    if not through_store:
        # Workers of a host each update a slice of its parameters, or else all of them.
        whole = phase.traits.local or not job.elementwise
        parts = [1 if whole else team.per_host[m.host] for m in members]
        busy = [w + m.costs.update / p for w, m, p in zip(works, members, parts, strict=True)]
    last = max(range(len(busy)), key=busy.__getitem__)
    every = steps_between_meetings(phase)
    computing = busy[last] * (1.0 + team.variation / sqrt(every) * lateness(len(busy)))
    found = _exchange(setup, works[last]) if len(members) > 1 else ExchangeCost(0.0, 0.0)
    exchange = found.seconds / every
    return StepCost(
        computing,
        exchange,
        combined((computing, members[last].error(samples[last])), (exchange, found.error)),
        samples,
        busy,
        members[last].machine,
        setup.link_words,
        setup.servers if through_store else (),
    )


def _exchange(setup: Setup, computing: float) -> ExchangeCost:
    """Seconds of one exchange among all workers that computing does not hide."""
    size, several = setup.job.gradient_bytes, max(setup.team.per_host.values()) > 1
    inside = setup.sum_in_memory if several else 0.0
    if not setup.apart:
        return ExchangeCost(inside + size * 2 * setup.codec.coding, UNSURE)
    if setup.phase.name == "bsp":
        found = _through_store(setup)
    elif setup.phase.codec is not None:
        found = _encoded(setup)
    else:
        found = _summed(setup, computing)
    extra = inside + MEETING_SECONDS + 2.0 * setup.network.link(setup.team.hosts)[0].latency
    error = combined((found.seconds, found.error), (extra, UNSURE))
    return ExchangeCost(found.seconds + extra, error)


def _encoded(setup: Setup) -> ExchangeCost:
    size, hosts, codec = setup.job.gradient_bytes, setup.team.hosts, setup.codec
    sent = setup.network.exchange(hosts, size * codec.ratio, coded=True)
    coding = size * (1 + len(hosts)) * codec.coding
    error = combined((sent.seconds, sent.error), (coding, codec.error))
    return ExchangeCost(sent.seconds + coding, error)


def _summed(setup: Setup, computing: float) -> ExchangeCost:
    team, phase, size = setup.team, setup.phase, setup.job.gradient_bytes
    topology = phase.options.get("topology")
    found = setup.network.exchange(team.hosts, size, str(topology) if topology else None)
    goes_ahead = (
        phase.name == "allreduce"
        and team.overlaps
        and found.name == "all_reduce.direct"
        and size >= LEAST_AHEAD
        and len(team.members) == len(team.hosts)
    )
    if not goes_ahead:
        return found
    # Two hosts send each other everything early; with more, half is sent back after the sum.
    early = found.seconds if len(team.hosts) == 2 else found.seconds / 2
    ahead = early - _left_after(setup.job, early, computing)
    moved = 4.0 * size * (1.0 - 1.0 / len(team.hosts)) * ahead / found.seconds
    hidden = max(0.0, min(OVERLAPPED * ahead, ahead - moved * max(setup.handling.values())))
    return ExchangeCost(found.seconds - hidden, found.error + 0.1 * hidden / found.seconds)


def _left_after(job: JobProfile, sending: float, computing: float) -> float:
    """Seconds of sending that remain when the last gradient is ready; pieces go in order."""
    free_at = 0.0
    for share, ready in job.ready:
        free_at = max(free_at, ready * computing) + share * sending
    return min(sending, max(0.0, free_at - computing))


def _through_store(setup: Setup) -> ExchangeCost:
    """The cost of a step in which all push at once, servers update, and all pull."""
    team, network, codec, size = setup.team, setup.network, setup.codec, setup.job.gradient_bytes
    others = len(team.hosts) - 1
    updates = {m.host: m.costs.update for m in team.members}
    pushing = replying = update = most = handling = 0.0
    for host in team.hosts:
        held = setup.servers.count(host) / len(setup.servers)
        away, there, back = 1.0 - held, network.sending(host), network.receiving(host)
        pushing = max(pushing, codec.ratio * size * max(away / there, held * others / back))
        replying = max(replying, size * max(away / back, held * others / there))
        update, most = max(update, updates[host] * held), max(most, held)
        moved = size * (1.0 + codec.ratio) * (away + held * others)
        handling = max(handling, setup.handling[host] * moved)
    coding = size * codec.coding * (1.0 + len(team.hosts) * most)
    link, known = network.link(team.hosts)
    seconds = pushing + replying + update + coding + handling + 2.0 * link.latency
    return ExchangeCost(seconds, STORE_ERROR if known else UNKNOWN_ERROR)
