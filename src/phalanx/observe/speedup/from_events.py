"""Judges from a run's events what its machines are worth to it, during the run and afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.spec import Spec, parse_spec
from phalanx.observe.events.event_types import Balanced, WorkerLost
from phalanx.observe.events.step_intervals import MOST, RankWindow, windows_of
from phalanx.observe.events.strategy_phases import PhaseSteps, split_phases
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.speedup.speedup import Way, Worth, worth
from phalanx.observe.speedup.speedup_words import advise, and_lost

ENOUGH_LAPS, ENOUGH_SECONDS = 8, 2.0
FEWEST_LAPS, LONG_ENOUGH = 3, 20.0
"""So few laps are enough if they are long: of long steps, or of rounds far apart."""
CLOSE = 0.05


def judge(
    ranks: Sequence[RankLog], strategy: str, *, balance: bool, settled: bool = False
) -> Worth | None:
    """Judge a run; ``None`` while there are too few laps.

    ``settled``: use only laps after the last change of shares, however few they are. After a loss,
    only later laps count, of the remaining workers.
    """
    gone = _gone(ranks)
    basis = basis_of(ranks, strategy, balance=balance, settled=settled)
    if basis is None:
        return None
    found = worth(
        basis.windows,
        basis.machines | {rank: event.machine for rank, event in gone.items()},
        basis.way,
    )
    return _with_words(found, _until_then(ranks, gone), settled) if found else None


@dataclass(frozen=True)
class Basis:
    """The steps of a run that estimates are made from."""

    logs: list[RankLog]
    """The remaining workers, since the last loss."""
    machines: dict[int, str]
    phase: PhaseSteps
    """The longest phase of the strategy."""
    windows: dict[int, RankWindow]
    way: Way


def basis_of(
    ranks: Sequence[RankLog],
    strategy: str,
    *,
    balance: bool,
    settled: bool = False,
    most: int = MOST,
) -> Basis | None:
    """Choose the steps to judge a run by, at most so many of a worker; see ``judge``."""
    gone = _gone(ranks)
    left = [_since_loss(log) for log in ranks if log.rank not in gone]
    phase = _longest(split_phases(left, strategy))
    spec = _read(phase.name) if phase else None
    if phase is None or spec is None:
        return None
    windows = windows_of(phase, _last_change(left), most)
    if not _enough(windows, len(left)) and not settled:
        windows = windows_of(phase, 0, most)
    if not _enough(windows, len(left)):
        return None
    balances = spec.phases[0].traits.balanced
    teams = dict(zip([log.rank for log in left], phase.teams or [0] * len(left), strict=True))
    way = Way(phase.waiting, teams, balances, balance and balances and not _avoids(strategy))
    machines = {log.rank: log.joined.machine if log.joined else "" for log in left}
    return Basis(left, machines, phase, windows, way)


def _gone(ranks: Sequence[RankLog]) -> dict[int, WorkerLost]:
    """Losses by rank, but none reported by a lost worker: cut off, it lost all the others."""
    gone: dict[int, WorkerLost] = {}
    for log in ranks:
        if log.rank not in gone:
            gone |= {event.worker: event for event in log.lost if event.worker != log.rank}
    return gone


def _with_words(found: Worth, lost: dict[str, float], settled: bool) -> Worth:
    found = msgspec.structs.replace(found, lost=lost)
    advice = advise(found)
    if advice is not None or not settled:  # before that, a loss alone is no reason to speak
        advice = and_lost(found, advice)
    return msgspec.structs.replace(found, advice=advice)


def _since_loss(log: RankLog) -> RankLog:
    """The part of a worker's log after it heard of the last loss, by its own clock."""
    if not log.lost:
        return log
    moment = log.lost[-1].time
    return replace(
        log,
        steps=[step for step in log.steps if step.began >= moment],
        rounds=[met for met in log.rounds if met.began >= moment],
    )


def _until_then(ranks: Sequence[RankLog], gone: Mapping[int, WorkerLost]) -> dict[str, float]:
    """The samples a second of each lost machine, before it was lost."""
    found = dict.fromkeys((event.machine for event in gone.values()), 0.0)
    for log in ranks:
        if log.rank in gone and log.steps:
            seconds = log.steps[-1].ended - log.steps[0].began
            samples = sum(step.samples for step in log.steps)
            found[gone[log.rank].machine] += samples / seconds if seconds > 0.0 else 0.0
    return found


def _longest(phases: Sequence[PhaseSteps]) -> PhaseSteps | None:
    def seconds(phase: PhaseSteps) -> float:
        return sum(step.seconds for steps in phase.steps for step in steps)

    return max(phases, key=seconds, default=None)


def _read(text: str) -> Spec | None:
    try:
        return parse_spec(text)
    except InputError:
        return None


def _avoids(strategy: str) -> bool:
    """Whether a policy reacts to stragglers; the strategy then does not balance as well."""
    spec = _read(strategy)
    return spec is not None and spec.on_straggler


def _last_change(ranks: Sequence[RankLog]) -> int:
    """The first step after the last change of shares; one worker records it, for all."""
    for log in ranks:
        if log.balanced:
            moment = _settled(log.balanced)
            return next((step.number for step in log.steps if step.began >= moment), 1 << 62)
    return 0


def _settled(changes: Sequence[Balanced]) -> float:
    """When shares became nearly the present ones, because small refinements go on for long."""
    last = changes[-1]
    moment = last.time
    for change in reversed(changes):
        if max(abs(a - b) for a, b in zip(change.shares, last.shares, strict=False)) > CLOSE:
            break
        moment = change.time
    return moment


def _enough(windows: Mapping[int, RankWindow], ranks: int) -> bool:
    if not 0 < ranks == len(windows):
        return False
    laps = min(len(window.laps) for window in windows.values())
    seconds = max(window.trained for window in windows.values())
    quick = laps >= ENOUGH_LAPS and seconds >= ENOUGH_SECONDS
    return quick or (laps >= FEWEST_LAPS and seconds >= LONG_ENOUGH)
