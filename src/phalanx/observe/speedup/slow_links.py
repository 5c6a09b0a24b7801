"""Finds a machine, or a link, over which far fewer bytes pass a second than between the others.

In lockstep between machines, all wait for the slowest link alike, so no worker comes last. But the
kernel counts for how long each connection had bytes under way, and how many arrived. Two machines
have one link, which can be compared with nothing but its other direction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, median

from phalanx.core import words
from phalanx.observe.events.step_intervals import WARM_UP
from phalanx.observe.events.strategy_phases import PhaseSteps
from phalanx.observe.events.timeline import RankLog, WorkerStep
from phalanx.observe.speedup.straggler import Straggler, meetings

NETWORK = "slow network"
SLOW = 0.5
"""A link is slow below this part of the others' rate."""
LEAST_BYTES = 8 << 20
"""Fewer bytes do not show how fast a link is."""
LEAST_COST = 0.05
MEND = "mend its link, or send less (a codec: --strategy …+int8, or localsgd)"

Rates = Mapping[tuple[str, str], float]
Place = tuple[str, ...]
"""A machine all of whose links are slow; or both ends of a slow link."""


def slow_link(logs: Sequence[RankLog], phase: PhaseSteps) -> Straggler | None:
    """Find the place whose links are slow, as the straggler; ``None`` if that costs little."""
    rows = sorted(list(meetings(phase))[WARM_UP:], key=_communication)
    apart = [max(0.0, _communication(row)) for row in rows]
    if not rows:
        return None
    # The link may be slow for a part of the run: its steps have most of the communication.
    of_most = apart[bisect_left(list(accumulate(apart)), sum(apart) / 2)]
    slow = [seconds for seconds in apart if seconds > SLOW * of_most]
    times = sorted(row[0].ended for row in rows[len(rows) - len(slow) :])
    edge = len(times) // 20
    used = links_used(logs, times[edge], times[-1 - edge]) if times else {}
    rates = {way: count / seconds for way, (count, seconds) in used.items()}
    found = slow_place(rates)
    if found is None:
        return None
    place, rate, usual = found
    whole = sum(fmean(step.seconds for step in row) for row in rows)
    if_mended = max(count for count, _ in used.values()) / max(rates.values()) / len(slow)
    saved = sum(slow) - len(slow) * if_mended
    if saved <= LEAST_COST * whole:
        return None
    machines = {log.rank: log.joined.machine for log in logs if log.joined}
    return Straggler(
        rank=next(rank for rank, machine in machines.items() if machine == place[0]),
        share=0.0,
        steps=len(slow),
        seconds=saved,
        cost=saved / whole,
        machine=place[0],
        cause=NETWORK,
        evidence=[
            f"{' to '.join(place)}: {words.size(rate)} a second on a connection, "
            f"between the other machines {words.size(usual)}",
            f"all workers spent {words.seconds(sum(slow))} on communication then",
        ],
        remedy=MEND,
        gain=whole / (whole - saved) - 1.0,
    )


def links_used(
    logs: Sequence[RankLog], began: float, ended: float
) -> dict[tuple[str, str], tuple[int, float]]:
    """The bytes from one machine to another between two moments, and the seconds in which some were
    under way; without links that carried too little to show how fast they are."""
    found = {}
    for log in logs:
        then = [use.peers for use in log.links if began <= use.time <= ended]
        for peer, (count, seconds) in then[-1].items() if log.joined and then else ():
            known, before = then[0].get(peer, (0, 0.0))
            if log.joined and count - known >= LEAST_BYTES and seconds > before:
                found[log.joined.machine, peer] = count - known, seconds - before
    return found


def _communication(row: Sequence[WorkerStep]) -> float:
    """Seconds of a joint step after the last worker was ready."""
    own = max(step.input + step.compute for step in row)
    return fmean(step.seconds - step.send - step.update for step in row) - own


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
