"""Finds why a worker makes the others wait, how much faster the run would be, and what mends it.

What the worker has more of than the others, reading or computing, is held against the figures of
its machine while it was late. Only what differs from the other machines is a cause. Nothing is
said of workers of one machine that its figures cannot tell apart, but for their input, and where
other programs crowd the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import msgspec

from phalanx.core import words
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.events.step_intervals import WARM_UP, between
from phalanx.observe.events.strategy_phases import PhaseSteps, WaitRule
from phalanx.observe.speedup.from_events import Basis
from phalanx.observe.speedup.slow_links import slow_link
from phalanx.observe.speedup.speedup import gain_if
from phalanx.observe.speedup.straggler import Straggler, meetings

MEMORY, INPUT, OTHERS = "memory", "slow input", "another process"
THROTTLED, SLOW = "throttled", "slow processor"

FEWER = 0.8
MANY_FAULTS, SWAPPED = 20.0, 1e6
"""Page faults, and bytes swapped, a second: never seen for long with enough memory."""
CLEARLY = 10.0
"""Points of a percentage by which a machine differs clearly from the others."""
STOLEN = 5.0
FULL = 75.0
"""Percent of a machine's cores in use, above which another program takes time from the worker."""
CROWDED = 95.0
ALIKE = 1.1
AS_FAST = 1.25
"""A worker computes as fast as the others if it takes at most so many times as long."""
_TAILS = 0.15
MOST_NAMED = 8
LEAST_GAIN = 0.05
"""Smaller gains are not worth a sentence."""


@dataclass(frozen=True)
class _Scene:
    """The straggler and the others, in the time in which it was late."""

    machine: str
    late: list[int]
    """The straggler; with the other workers of its machine, if they are slow too."""
    by_machine: bool
    """Whether its machine's figures may explain it: no worker there is as fast as others are."""
    pace: float
    pace_of_others: float
    """Seconds of work per sample."""
    more_input: float
    """Seconds of input per sample more than the others'."""
    readings: list[list[MachineSample]]
    """Of its machine, then of each of the others."""

    def mean(self, read: str | Callable[[MachineSample], float | None]) -> tuple[float, float]:
        """A figure of the straggler's machine, and the largest of the other machines'."""
        found = []
        for samples in self.readings:
            values = [getattr(s, read) if isinstance(read, str) else read(s) for s in samples]
            known = [value for value in values if value is not None]
            found.append(fmean(known) if known else 0.0)
        return found[0], max(found[1:], default=0.0)

    @property
    def fewer_cores(self) -> list[str]:
        """The machine's cores in words, if it has clearly fewer than each of the others."""
        own, *others = [next((s.cores or 0.0 for s in found), 0.0) for found in self.readings]
        fewer = 0.0 < own < FEWER * min(others, default=0.0)
        return [f"it has {own:.2g} cores, the others {min(others):.2g} or more"] if fewer else []


def explain(
    late: Straggler | None,
    basis: Basis | None,
    samples: Mapping[str, Sequence[MachineSample]],
    *,
    equal: bool,
) -> Straggler | None:
    """Add cause, evidence, remedy and gain to a straggler; or find a slow link, if there is none.

    ``equal``: the user has switched off shares by speed.
    """
    if basis is None:
        return late
    if late is None or late.rank not in basis.windows:
        return late or slow_link(basis.logs, basis.phase)
    scene = _scene(late.rank, basis, samples)
    if scene is None:
        return late
    found = next(_causes(scene), None)
    machines = list(dict.fromkeys(_machines(basis).values()))
    late = msgspec.structs.replace(late, machine=scene.machine)
    if found is None:
        return late
    cause, evidence = found
    less = scene.more_input if cause == INPUT else scene.pace - scene.pace_of_others
    saturated = scene.mean("cpu_percent")[0] / 100.0 if scene.by_machine and cause != INPUT else 0.0
    gain = gain_if(
        basis.windows,
        basis.way,
        scene.late,
        scene.pace - less,
        above=scene.pace - less / 2,
        saturated=saturated,
    )
    remedies = [_MENDS[cause].format(machine=scene.machine)]
    if equal and basis.way.balances:
        remedies.append("drop shares=equal, so that it gets smaller batches")
    if len(machines) > 1 and cause != INPUT:
        rest = [name for name in machines if name != scene.machine]
        named = f" (--machines {','.join(rest)})" if len(rest) <= MOST_NAMED else ""
        remedies.append(f"leave it out{named}")
    if basis.way.waiting is WaitRule.LOCKSTEP and not basis.way.balanced and not equal:
        remedies.append("let no worker wait (--strategy async)")
    return msgspec.structs.replace(
        late, cause=cause, evidence=evidence, gain=gain, remedy=" or ".join(remedies)
    )


_MENDS = {
    MEMORY: "give {machine} less to keep: a smaller --batch, fewer num_workers, or more memory",
    INPUT: "read ahead (num_workers=2 or more in the DataLoader), or from a faster disk",
    OTHERS: "end the other programs on {machine}",
    THROTTLED: "raise the quota of its control group (cpu.max)",
    SLOW: "give it more cores",
}


def _scene(
    rank: int, basis: Basis, samples: Mapping[str, Sequence[MachineSample]]
) -> _Scene | None:
    machines, (began, ended) = _machines(basis), late_between(basis.phase, rank)
    found: dict[int, float] = {}
    inputs: dict[int, float] = {}
    for steps in basis.phase.steps:
        pairs = [(a, b) for a, b in pairwise(steps) if began <= b.began <= ended and b.samples]
        if pairs:
            inputs[steps[0].rank] = median(b.input / b.samples for _, b in pairs)
            work = [(between(a, b) + b.input + b.compute) / b.samples for a, b in pairs]
            found[steps[0].rank] = median(work)
    machine = machines[rank]
    elsewhere = {name for name in machines.values() if name != machine}
    others = [other for other in found if machines[other] != machine or not elsewhere]
    others = [other for other in others if other != rank]
    if rank not in found or not others:
        return None
    usual = median(found[other] for other in others)
    late = [other for other in found if elsewhere and machines[other] == machine] or [rank]
    by_machine = bool(elsewhere) and all(found[other] > ALIKE * usual for other in late)
    reads = [inputs[other] for other in others if other in inputs]
    readings = [
        [sample for sample in samples.get(name, []) if began <= sample.time <= ended]
        for name in (machine, *sorted(elsewhere))
    ]
    return _Scene(
        machine=machine,
        late=late if by_machine else [rank],
        by_machine=by_machine,
        pace=found[rank],
        pace_of_others=usual,
        more_input=inputs.get(rank, 0.0) - (median(reads) if reads else 0.0),
        readings=readings,
    )


def late_between(phase: PhaseSteps, rank: int) -> tuple[float, float]:
    """Between which moments ``rank`` made the others wait, without the first and last few of them;
    the whole phase if no worker waits."""
    costs = []
    for row in meetings(phase) if phase.waiting is WaitRule.LOCKSTEP else ():
        last, *before = sorted(row, key=lambda step: step.ready, reverse=True)
        if last.rank == rank:
            costs.append((last.began, last.ended, last.ready - before[0].ready))
    steps = [step for own in phase.steps for step in own if step.rank == rank]
    began, ended = steps[min(WARM_UP, len(steps) - 1)].began, steps[-1].ended
    whole, passed = sum(cost for _, _, cost in costs), 0.0
    inside = []
    for start, end, cost in costs:
        passed += cost
        if _TAILS * whole <= passed <= (1.0 - _TAILS) * whole:
            inside.append((start, end))
    return (max(began, inside[0][0]), inside[-1][1]) if inside else (began, ended)


def _causes(scene: _Scene) -> Iterator[tuple[str, list[str]]]:
    """Yield what explains the straggler, the surest cause first, with the figures that show it."""
    more = scene.pace - scene.pace_of_others
    if more <= 0.0:
        return
    computing = scene.pace - scene.more_input
    longer = (
        f"{words.seconds(scene.pace)} of work per sample, "
        f"the others {words.seconds(scene.pace_of_others)}"
    )
    faults, elsewhere = scene.mean("major_faults_per_second")
    if scene.by_machine and faults >= MANY_FAULTS and faults > 5 * elsewhere:
        told = f"{words.count(faults)} page faults a second had to read its disk"
        yield MEMORY, [longer, f"{told}, on the other machines {words.count(elsewhere)} at most"]
    swapped, _ = scene.mean("swap_bytes_per_second")
    if scene.by_machine and swapped >= SWAPPED:
        yield MEMORY, [longer, f"{words.size(swapped)} a second went to or from its swap space"]
    if scene.more_input >= 0.5 * more and computing < AS_FAST * scene.pace_of_others:
        told = f"{words.seconds(scene.more_input)} of it to read a sample, beyond what others take"
        yield INPUT, [longer, told]
    others, elsewhere = scene.mean(_used_by_others)
    crowded = len(scene.readings) == 1 and scene.mean("cpu_percent")[0] >= CROWDED
    if crowded and others >= 2 * CLEARLY:  # they take the time of some workers, not of all alike
        yield OTHERS, [longer, f"other programs used {others:.0f} % of the cores"]
    if not scene.by_machine:
        return
    waiting, waiting_elsewhere = scene.mean("pressure_cpu")
    full = scene.mean("cpu_percent")[0] >= FULL or waiting >= waiting_elsewhere + CLEARLY
    if full and others >= elsewhere + CLEARLY:
        yield OTHERS, [longer, f"other programs used {others:.0f} % of its cores"]
    stolen, elsewhere = scene.mean("cpu_steal")
    if stolen >= elsewhere + STOLEN:
        yield OTHERS, [longer, f"other virtual machines took {stolen:.0f} % of its cores"]
    throttled, elsewhere = scene.mean("throttled_percent")
    fewer = scene.fewer_cores
    if throttled >= CLEARLY and (throttled >= elsewhere + CLEARLY or fewer):
        held = f"its quota was used up for {throttled:.0f} % of the time"
        yield THROTTLED, [longer, held, *fewer]
    yield SLOW, [longer, *fewer]


def _used_by_others(sample: MachineSample) -> float | None:
    """Percent of all cores that other programs than the run's workers use."""
    workers = sample.workers_cpu_percent / sample.cores if sample.cores else None
    return None if workers is None else max(0.0, sample.cpu_percent - workers)


def _machines(basis: Basis) -> dict[int, str]:
    return {log.rank: log.joined.machine if log.joined else "" for log in basis.logs}
