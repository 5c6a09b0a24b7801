"""Estimates what each machine contributes to a run, and how fast fewer machines would be.

The estimate replays the measured laps. In lockstep, a lap takes as long as its slowest worker is
busy, plus the communication and the update after that. A replay scales each rank's measured work to
other shares, leaves out some ranks, and adds up the laps again. It assumes that communication takes
as long as with all machines, or no time on a single machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import msgspec

from phalanx.observe.events.step_intervals import Lap, RankWindow
from phalanx.observe.events.strategy_phases import WaitRule
from phalanx.policies.fitting_shares import fitting_shares

PARTS = 4
"""The run is cut into so many parts; an estimate counts only if it holds in each of them."""
ALL, BALANCE, FEWER = "all", "balance", "fewer"


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """The samples a second of one machine, and their share of the whole run's."""

    samples_per_second: float
    share: float


class WaitedFor(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the others wait for."""

    name: str
    share: float
    """Time that the others wait for this machine, as a share of their time."""
    slower: float | None
    """The machine's time per sample as a multiple of the others'."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of machines and shares, and the estimate of its speed."""

    kind: str
    """``all`` as it is; ``balance``: the same machines, balanced; ``fewer`` of them."""
    machines: list[str]
    samples_per_second: float
    times: float
    """The speed as a multiple of the present one."""
    low: float
    high: float
    """The least and the most of ``times`` in equal parts of the run."""


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What the machines are worth to a run."""

    machines: dict[str, Contribution]
    """Contributions by machine, or as ``worker N`` if there is one machine."""
    samples_per_second: float
    waiting: WaitedFor | None
    predicted: list[Option]
    several_hosts: bool = True
    """Whether the names are machines; if not, they are workers of one machine."""
    lost: dict[str, float] = {}
    """Machines that the run lost, with their samples a second before that. All other fields are
    about the remaining ones."""
    advice: str | None = None
    """Advice in words; null when it is not known."""


@dataclass(frozen=True)
class Way:
    """How the ranks of a run work together."""

    waiting: WaitRule
    teams: Mapping[int, int]
    balances: bool
    """Whether unequal shares can help, because workers wait for the slowest one."""
    balanced: bool
    """Whether the strategy balances the shares already."""

    @property
    def whole(self) -> bool:
        """Whether all workers share one global batch; fewer workers then have more to do each."""
        return self.waiting is not WaitRule.NOBODY and len(set(self.teams.values())) == 1


Windows = Mapping[int, RankWindow]


def worth(ranks: Windows, machines: Mapping[int, str], way: Way) -> Worth | None:
    """The worth of each machine, from the laps of the remaining ``ranks``; ``machines`` has also
    the lost ranks. ``None`` for a run with one worker."""
    if len(machines) < 2 or not all(_sum_samples(window.laps) for window in ranks.values()):
        return None
    names = _units(ranks, machines)
    rates = dict.fromkeys(names.values(), 0.0)
    spent = max(_sum_seconds(window.laps) for window in ranks.values())
    for rank, window in ranks.items():
        own = spent if way.waiting is WaitRule.LOCKSTEP else _sum_seconds(window.laps)
        rates[names[rank]] += _sum_samples(window.laps) / own
    whole = sum(rates.values())
    return Worth(
        machines={n: Contribution(samples_per_second=r, share=r / whole) for n, r in rates.items()},
        samples_per_second=whole,
        waiting=_waited_for(ranks, names, way),
        predicted=list(_options(ranks, names, way)),
        several_hosts=len(set(machines.values())) > 1,
    )


def _units(ranks: Windows, machines: Mapping[int, str]) -> dict[int, str]:
    """The units that are left out or kept as one: machines, or the workers of a single machine."""
    if len(set(machines.values())) > 1:
        return {rank: machines.get(rank, "") or f"worker {rank}" for rank in ranks}
    return {rank: f"worker {rank}" for rank in ranks}


def _options(ranks: Windows, names: Mapping[int, str], way: Way) -> Iterator[Option]:
    """Options: all machines, all balanced, and all without the slowest one, two, and so on."""
    replay = _Replay(_with_parts(ranks), names, way)
    everyone = list(dict.fromkeys(names.values()))
    yield replay.option(ALL, everyone)
    if len(everyone) < 2:
        return
    if way.balances and not way.balanced:
        yield replay.option(BALANCE, everyone)
    order = sorted(everyone, key=lambda name: _slowness(ranks, names, name), reverse=True)
    for left_out in range(1, len(order) - 1):
        yield replay.option(FEWER, [name for name in everyone if name not in order[:left_out]])
    alone = max(everyone, key=lambda name: _rate(ranks, _of(names, [name]), way, alone=True))
    yield replay.option(FEWER, [alone])


def _with_parts(ranks: Windows) -> list[Windows]:
    """The whole time, then each stretch of it."""
    parts = min(PARTS, *(len(window.laps) for window in ranks.values()))
    return [
        ranks,
        *({r: window.cut(i, parts) for r, window in ranks.items()} for i in range(parts)),
    ]


class _Replay:
    """Replays the laps as other machines would have run them."""

    def __init__(self, times: Sequence[Windows], names: Mapping[int, str], way: Way) -> None:
        self._times, self._names, self._way = times, names, way
        self._now = [_now(laps, way) for laps in times]

    def option(self, kind: str, kept: list[str]) -> Option:
        rates = self._now
        if kind != ALL:
            chosen, alone = _of(self._names, kept), len(kept) == 1
            way = replace(self._way, balanced=self._way.balanced or kind == BALANCE)
            rates = [_rate(laps, chosen, way, alone=alone) for laps in self._times]
        times = [rate / now for rate, now in zip(rates, self._now, strict=True)]
        return Option(
            kind=kind,
            machines=kept,
            samples_per_second=rates[0],
            times=times[0],
            low=min(times[1:]),
            high=max(times[1:]),
        )


def _now(ranks: Windows, way: Way) -> float:
    """The present speed; a strategy that balances is taken to reach the best shares in the end."""
    as_it_is = _rate(ranks, list(ranks), way, anew=False)
    return max(as_it_is, _rate(ranks, list(ranks), way)) if way.balanced else as_it_is


def _of(names: Mapping[int, str], kept: Sequence[str]) -> list[int]:
    return [rank for rank, name in names.items() if name in kept]


def _slowness(ranks: Windows, names: Mapping[int, str], name: str) -> float:
    found = paces(ranks)
    return max(found[rank] for rank in _of(names, [name]))


def paces(ranks: Windows) -> dict[int, float]:
    """Seconds of work per sample of each rank, if all ranks had the same number of samples."""
    usual = fmean(lap.samples for window in ranks.values() for lap in window.laps)
    return {rank: window.busy(usual) / usual for rank, window in ranks.items()}


def _rate(
    ranks: Windows, kept: Sequence[int], way: Way, *, anew: bool = True, alone: bool = False
) -> float:
    """Samples a second if only ``kept`` had taken part in these laps.

    ``anew``: the batch is shared out among them; ``alone``: they are on one machine.
    """
    if way.waiting is WaitRule.NOBODY or (way.waiting is WaitRule.BOUNDED and not anew):
        return sum(_own_rate(ranks[rank], alone) for rank in kept)
    rate = 0.0
    for team in sorted({way.teams[rank] for rank in kept}):
        members = {rank: w for rank, w in ranks.items() if way.teams[rank] == team}
        chosen = [rank for rank in kept if rank in members]
        rate += _team_rate(members, chosen, way, anew, alone)
    return rate


def gain_if(
    ranks: Windows,
    way: Way,
    late: Collection[int],
    pace: float,
    *,
    saturated: float = 0.0,
    others_use: float = 0.0,
) -> float:
    """By which part the run would be faster if the workers ``late`` had taken at most ``pace``
    seconds of work per sample.

    ``saturated``: the part of the time in which their processors had no time left. In that time
    they were slow at communicating too, by as much as at their own work. ``others_use``: the part
    of its quota that another machine has used, and needs as much of in a shorter time.
    """
    mended: dict[int, RankWindow] = {}
    groups: dict[int, dict[int, RankWindow]] = defaultdict(dict)
    for rank, window in ranks.items():
        group = way.teams[rank] if way.waiting is WaitRule.LOCKSTEP else rank
        groups[group][rank] = window
    for members in groups.values():
        busy: dict[int, list[float]] = {rank: [] for rank in members}
        saved = []
        for row in _rows(members):
            for rank, lap in row.items():
                least = min(lap.busy, pace * lap.samples) if rank in late else lap.busy
                busy[rank].append(least)
            before, after = max(lap.busy for lap in row.values()), max(b[-1] for b in busy.values())
            part = min(busy[rank][-1] / (lap.busy or 1.0) for rank, lap in row.items())
            whole = max(lap.seconds for lap in row.values())
            others = max(0.0, saturated * whole - before)  # not its own work, yet processor
            could = before - after + others * (1.0 - part)
            saved.append(min(could, (1.0 - others_use) * whole))
        for rank, window in members.items():
            laps = zip(window.laps, busy[rank], saved, strict=False)
            shorter = [lap._replace(busy=b, seconds=lap.seconds - s) for lap, b, s in laps]
            part = sum(busy[rank]) / (sum(lap.busy for lap in window.laps[: len(saved)]) or 1.0)
            mended[rank] = RankWindow(tuple(shorter), window.fixed * part, window.each * part)
    anew = way.balanced or way.waiting is WaitRule.BOUNDED
    now = _rate(ranks, list(ranks), way, anew=anew)
    return _rate(mended, list(ranks), way, anew=anew) / now - 1.0 if now > 0.0 else 0.0


def _own_rate(window: RankWindow, alone: bool) -> float:
    """The rate of a worker that waits for no other."""
    seconds = sum(lap.busy + lap.update if alone else lap.seconds for lap in window.laps)
    return _sum_samples(window.laps) / seconds if seconds > 0.0 else 0.0


def _team_rate(team: Windows, kept: Sequence[int], way: Way, anew: bool, alone: bool) -> float:
    samples = seconds = 0.0
    took: dict[int, float] = dict.fromkeys(kept, 0.0)
    known: dict[float, dict[int, float]] = {}
    for row in _rows(team):
        mine = {rank: float(row[rank].samples) for rank in kept}
        if anew:
            batch = (
                float(sum(lap.samples for lap in row.values())) if way.whole else sum(mine.values())
            )
            if batch not in known:
                known[batch] = _shared_out(team, kept, batch, way.balanced)
            mine = known[batch]
        busy = {rank: _scaled(team[rank], row[rank], mine[rank]) for rank in kept}
        samples += sum(mine.values())
        seconds += max(busy.values()) + _after(row, kept, alone)
        for rank in kept:
            lap = row[rank]
            rest = lap.update if alone else max(0.0, lap.seconds - lap.busy - lap.wait)
            took[rank] += busy[rank] + rest
    if way.waiting is WaitRule.BOUNDED:  # those ahead wait only now and then
        seconds = max(took.values())
    return samples / seconds if seconds > 0.0 else 0.0


def _after(row: Mapping[int, Lap], kept: Sequence[int], alone: bool) -> float:
    """Seconds of a lap after its slowest worker was ready: communication and the update."""
    if alone:
        return max(row[rank].update for rank in kept)
    whole = max(lap.seconds for lap in row.values())
    return max(0.0, whole - max(lap.busy for lap in row.values()))


def _rows(team: Windows) -> Iterator[dict[int, Lap]]:
    length = min(len(window.laps) for window in team.values())
    for place in range(length):
        yield {rank: window.laps[place] for rank, window in team.items()}


def _shared_out(
    team: Windows, kept: Sequence[int], batch: float, balanced: bool
) -> dict[int, float]:
    if not balanced:
        return dict.fromkeys(kept, batch / len(kept))
    costs = [(team[rank].fixed, team[rank].each) for rank in kept]
    return dict(zip(kept, fitting_shares(costs, batch), strict=True))


def _scaled(window: RankWindow, lap: Lap, samples: float) -> float:
    """What this lap's work would have taken with another number of samples."""
    usual = window.busy(lap.samples)
    return lap.busy * window.busy(samples) / usual if usual > 0.0 else lap.busy


def _waited_for(ranks: Windows, names: Mapping[int, str], way: Way) -> WaitedFor | None:
    """How long the others waited for a worker: in a meeting the one that waits least was last."""
    if way.waiting is WaitRule.NOBODY:
        return None
    lost: dict[str, float] = dict.fromkeys(names.values(), 0.0)
    for team in sorted(set(way.teams.values())):
        members = {rank: w for rank, w in ranks.items() if way.teams[rank] == team}
        for row in _rows(members) if len(members) > 1 else ():
            last = min(row, key=lambda rank: row[rank].wait)
            others = [rank for rank in row if names[rank] != names[last]]
            lost[names[last]] += sum(row[rank].wait - row[last].wait for rank in others)
    name = max(lost, key=lambda one: lost[one])
    others = [rank for rank in ranks if names[rank] != name]
    theirs = sum(_sum_seconds(ranks[rank].laps) for rank in others)
    if theirs <= 0.0:
        return None
    found = paces(ranks)
    usual = median(found[rank] for rank in others)
    slower = _slowness(ranks, names, name) / usual if usual > 0.0 else None
    return WaitedFor(name=name, share=lost[name] / theirs, slower=slower)


def _sum_samples(laps: Sequence[Lap]) -> int:
    return sum(lap.samples for lap in laps)


def _sum_seconds(laps: Sequence[Lap]) -> float:
    return sum(lap.seconds for lap in laps)
