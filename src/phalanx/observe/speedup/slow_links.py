"""Finds a machine, or a link, over which far fewer bytes pass a second than between the others.

In lockstep between machines, all wait for the slowest link alike, so no worker comes last. But the
kernel counts for how long each connection had bytes under way, and how many arrived. Two machines
have one link, which can be compared with nothing but its other direction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median

from phalanx.core import words
from phalanx.observe.events.step_intervals import WARM_UP
from phalanx.observe.events.strategy_phases import PhaseSteps, WaitRule
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.speedup.straggler import Straggler, meetings

NETWORK = "slow network"
PERIOD = 5.0
"""Seconds for which rates are looked at: workers say so often what they have sent."""
SLOW = 0.5
"""A link is slow below this part of the others' rate."""
LEAST_BYTES = 1 << 20
"""Fewer bytes do not show how fast a link is."""
LEAST_COST = 0.05
MOST_NAMED = 8
MEND = "send less (a codec: --strategy …+int8, or localsgd)"

Rates = Mapping[tuple[str, str], float]
Place = tuple[str, ...]
"""A machine all of whose links are slow; or both ends of a slow link."""


def slow_link(logs: Sequence[RankLog], phase: PhaseSteps) -> Straggler | None:
    """Find the place whose links are slow, as the straggler; ``None`` if that costs little."""
    if phase.waiting is not WaitRule.LOCKSTEP:
        return None
    known = link_use(logs)
    rates = {at: {way: n / seconds for way, (n, seconds) in w.items()} for at, w in known.items()}
    slow = {at: found for at, one in rates.items() if (found := slow_place(one))}
    places = [place for place, _, _ in slow.values()]
    place = max(places, key=places.count, default=())
    best = max((rate for one in rates.values() for rate in one.values()), default=1.0)
    whole, apart, joint = 0.0, 0.0, 0
    periods: set[int] = set()
    for row in list(meetings(phase))[WARM_UP:]:
        seconds = fmean(step.seconds for step in row)
        whole += seconds
        at = _nearest(_period(row[0].ended), known)
        if at in slow and slow[at][0] == place:
            own = max(step.input + step.compute for step in row)
            apart += max(0.0, seconds - own - fmean(step.send + step.update for step in row))
            joint += 1
            periods.add(at)
    sent = sum(max(count for count, _ in known[at].values()) for at in periods)
    saved = apart - sent / best
    if not place or saved <= LEAST_COST * whole:
        return None
    machines = {log.rank: log.joined.machine for log in logs if log.joined}
    rest = [name for name in dict.fromkeys(machines.values()) if name not in place]
    out = f" or leave {place[0]} out" if len(place) == 1 else ""
    out += f" (--machines {','.join(rest)})" if out and len(rest) <= MOST_NAMED else ""
    rate = median(own for name, own, _ in slow.values() if name == place)
    usual = median(others for name, _, others in slow.values() if name == place)
    return Straggler(
        rank=next(rank for rank, machine in machines.items() if machine == place[0]),
        share=0.0,
        steps=joint,
        seconds=saved,
        cost=saved / whole,
        machine=place[0],
        cause=NETWORK,
        evidence=[
            f"{' to '.join(place)}: {words.size(rate)} a second on a connection, "
            f"between the other machines {words.size(usual)}",
            f"all workers spent {words.seconds(apart)} on communication then",
        ],
        remedy=f"mend its link, or {MEND}{out}",
        gain=whole / (whole - saved) - 1.0,
    )


def link_use(logs: Sequence[RankLog]) -> dict[int, dict[tuple[str, str], tuple[int, float]]]:
    """The bytes from one machine to another, and the seconds in which some were under way, by
    period; without links that carried too little to show how fast they are."""
    found: dict[int, dict[tuple[str, str], tuple[int, float]]] = defaultdict(dict)
    for log in logs:
        before: Mapping[str, tuple[int, float]] = {}
        for now in log.links if log.joined else ():
            for peer, (count, seconds) in now.peers.items():
                known, spent = before.get(peer, (0, 0.0))
                if count - known >= LEAST_BYTES and seconds > spent and log.joined:
                    way = log.joined.machine, peer
                    found[_period(now.time - PERIOD / 2)][way] = count - known, seconds - spent
            before = now.peers
    return found


def _period(moment: float) -> int:
    return int(moment // PERIOD)


def _nearest(period: int, known: Collection[int]) -> int:
    """The period itself, or else the nearest one of which rates are known."""
    return (
        period if period in known else min(known, key=lambda at: abs(at - period), default=period)
    )


def slow_place(rates: Rates) -> tuple[Place, float, float] | None:
    """Return the place that is slow, the rate there, and that of the other links; ``None`` if no
    place stands out, as where all links, or those of several machines, are slow."""
    machines = sorted({name for way in rates for name in way})
    places: list[Place] = [(name,) for name in machines if len(machines) > 2]
    for place in (*places, *rates):
        ways = [way for way in rates if way == place or (len(place) == 1 and place[0] in way)]
        own, others = [rates[way] for way in ways], [rates[w] for w in rates if w not in ways]
        if others and max(own) < SLOW * min(others):
            return place, median(own), median(others)
    return None
