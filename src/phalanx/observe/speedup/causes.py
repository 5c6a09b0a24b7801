"""Finds why a worker makes the others wait, how much faster the run would be, and what mends it.

What the worker has more of than the others, reading or computing, is held against the figures of
its machine while it was late. Only what differs from the other machines is a cause. Nothing is
said of workers of one machine that its figures cannot tell apart, but for their input, and where
other programs crowd the machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

import msgspec

from phalanx.core import words
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.events.step_intervals import Lap
from phalanx.observe.events.strategy_phases import WaitRule
from phalanx.observe.speedup.from_events import Basis
from phalanx.observe.speedup.slow_links import slow_link
from phalanx.observe.speedup.speedup import gain_if
from phalanx.observe.speedup.straggler import SLOWER, Straggler

MEMORY, INPUT, OTHERS = "memory", "slow input", "another process"
THROTTLED, SLOW = "throttled", "slow processor"

_MENDS = {
    MEMORY: "give {machine} less to keep: a smaller --batch, fewer num_workers, or more memory",
    INPUT: "read ahead (num_workers=2 or more in the DataLoader), or from a faster disk",
    OTHERS: "end the other programs on {machine}",
    THROTTLED: "raise the quota of its control group (cpu.max)",
    SLOW: "give it more cores",
}

FEWER = 0.8
PAGING = 20.0
"""Pages a second from or to a disk: never seen for long with enough memory."""
_PAGE = 4096
CLEARLY = 10.0
"""Points of a percentage by which a machine differs clearly from the others."""
FULL, CROWDED = 75.0, 95.0
"""Percent of a machine's cores in use, above which another program takes time from the worker; and
from one of several workers there, but not from all alike."""
ALIKE = 1.1
AS_FAST = 1.25
"""A worker computes as fast as the others if it takes at most so many times as long."""
_TAILS = 0.15
LEAST_GAIN = 0.05
"""Nobody is named for a smaller gain, unless the worker is clearly slow."""


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
    link = slow_link(basis.logs, basis.phase)
    if late is None or (link is not None and link.cost > late.cost):
        return link
    if late.rank not in basis.windows:
        return late
    scene = _scene(late.rank, basis, samples)
    if scene is None:
        return late
    late = msgspec.structs.replace(late, machine=scene.machine)
    found = _cause(scene)
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
        saturated=saturated,
        others_use=scene.mean(_used_of_quota)[1] / 100.0,
    )
    if gain < LEAST_GAIN and (late.slower or 0.0) < SLOWER:
        return None
    remedy = _MENDS[cause].format(machine=scene.machine)
    if equal and basis.way.balances:
        remedy += " or drop shares=equal, so that it gets smaller batches"
    elif basis.way.waiting is WaitRule.LOCKSTEP and not basis.way.balanced and not equal:
        remedy += " or let no worker wait (--strategy async)"
    return msgspec.structs.replace(late, cause=cause, evidence=evidence, gain=gain, remedy=remedy)


def _scene(
    rank: int, basis: Basis, samples: Mapping[str, Sequence[MachineSample]]
) -> _Scene | None:
    machines, windows = basis.machines, basis.windows
    machine = machines[rank]
    elsewhere = {name for name in machines.values() if name != machine}
    others = [o for o in windows if o != rank and (machines[o] != machine or not elsewhere)]
    if not others:
        return None
    usual = median(lap.busy / lap.samples for other in others for lap in windows[other].laps)
    began, ended = late_between(windows[rank].laps, usual)
    paces, inputs = {}, {}
    for other, window in windows.items():
        laps = [lap for lap in window.laps if began <= lap.ended <= ended] or window.laps
        paces[other] = median(lap.busy / lap.samples for lap in laps)
        inputs[other] = median(lap.input / lap.samples for lap in laps)
    usual = median(paces[other] for other in others)
    late = [other for other in windows if elsewhere and machines[other] == machine] or [rank]
    by_machine = bool(elsewhere) and all(paces[other] > ALIKE * usual for other in late)
    return _Scene(
        machine=machine,
        late=late if by_machine else [rank],
        by_machine=by_machine,
        pace=paces[rank],
        pace_of_others=usual,
        more_input=inputs[rank] - median(inputs[other] for other in others),
        readings=[
            [sample for sample in samples.get(name, []) if began <= sample.time <= ended]
            for name in (machine, *sorted(elsewhere))
        ],
    )


def late_between(laps: Sequence[Lap], usual: float) -> tuple[float, float]:
    """Between which moments a worker took longer than ``usual`` for a sample, but for the first and
    last few seconds of that."""
    lost = list(accumulate(max(0.0, lap.busy - usual * lap.samples) for lap in laps))
    first = bisect_left(lost, _TAILS * lost[-1])
    last = bisect_left(lost, (1.0 - _TAILS) * lost[-1])
    return laps[first].ended, laps[last].ended


def _cause(scene: _Scene) -> tuple[str, list[str]] | None:
    """What explains the straggler, the surest cause first, with the figures that show it."""
    more = scene.pace - scene.pace_of_others
    if more <= 0.0:
        return None
    longer = (
        f"{words.seconds(scene.pace)} of work per sample, "
        f"the others {words.seconds(scene.pace_of_others)}"
    )
    pages, elsewhere = scene.mean(_paging)
    if scene.by_machine and pages >= PAGING and pages > 5 * elsewhere:
        told = f"{words.count(pages)} pages of memory a second went to or from its disk"
        return MEMORY, [longer, f"{told}, on the other machines {words.count(elsewhere)} at most"]
    computing = scene.pace - scene.more_input
    if scene.more_input >= 0.5 * more and computing < AS_FAST * scene.pace_of_others:
        told = f"{words.seconds(scene.more_input)} of it to read a sample, beyond what others take"
        return INPUT, [longer, told]
    others, elsewhere = scene.mean(_used_by_others)
    (used, _), (waiting, usual) = scene.mean("cpu_percent"), scene.mean("pressure_cpu")
    alone = len(scene.readings) == 1
    full = used >= CROWDED if alone else used >= FULL or waiting >= usual + CLEARLY
    least = 2 * CLEARLY if alone else elsewhere + CLEARLY
    if full and others >= least and (alone or scene.by_machine):
        return OTHERS, [longer, f"other programs used {others:.0f} % of its cores"]
    if not scene.by_machine:
        return None
    throttled, elsewhere = scene.mean("throttled_percent")
    own, *rest = [next((s.cores or 0.0 for s in found), 0.0) for found in scene.readings]
    fewer = []
    if 0.0 < own < FEWER * min(rest):
        fewer = [f"it has {own:.2g} cores, the others {min(rest):.2g} or more"]
    if throttled >= CLEARLY and (throttled >= elsewhere + CLEARLY or fewer):
        held = f"its quota was used up for {throttled:.0f} % of the time"
        return THROTTLED, [longer, held, *fewer]
    return SLOW, [longer, *fewer]


def _paging(sample: MachineSample) -> float:
    return (sample.major_faults_per_second or 0.0) + (sample.swap_bytes_per_second or 0.0) / _PAGE


def _used_of_quota(sample: MachineSample) -> float | None:
    """Percent of a machine's quota that the workers use; if they have waited, they may compute
    faster than it allows for a moment."""
    quota = sample.cores if sample.cpu_source == "cgroup" else None
    return sample.workers_cpu_percent / quota if quota else None


def _used_by_others(sample: MachineSample) -> float | None:
    """Percent of all cores that other programs than the run's workers use, or other virtual
    machines."""
    workers = sample.workers_cpu_percent / sample.cores if sample.cores else None
    return None if workers is None else max(0.0, sample.cpu_percent - workers)
