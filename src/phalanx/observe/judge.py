"""What the machines are worth to a run, from its events: while it trains, and afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.spec import Spec, parse_spec
from phalanx.observe.events import Balanced
from phalanx.observe.laps import RankWindow, windows_of
from phalanx.observe.phases import PhaseSteps, split_phases
from phalanx.observe.timeline import RankLog
from phalanx.observe.worth import Way, Worth, worth
from phalanx.observe.worth_words import advise

ENOUGH_LAPS, ENOUGH_SECONDS = 8, 2.0
FEWEST_LAPS, LONG_ENOUGH = 3, 20.0
"""Of long steps, or of rounds that are far apart, fewer will do."""
CLOSE = 0.05


def judge(
    ranks: Sequence[RankLog], strategy: str, *, balance: bool, settled: bool = False
) -> Worth | None:
    """``None`` while there is too little to judge by.

    ``settled``: only what came after the last change of shares counts, however little that is.
    """
    phase = _longest(split_phases(ranks, strategy))
    spec = _read(phase.name) if phase else None
    if phase is None or spec is None:
        return None
    windows = windows_of(phase, _last_change(ranks))
    if not _enough(windows, len(ranks)) and not settled:
        windows = windows_of(phase)
    if not _enough(windows, len(ranks)):
        return None
    balances = spec.phases[0].traits.balanced
    teams = dict(zip([log.rank for log in ranks], phase.teams or [0] * len(ranks), strict=True))
    found = worth(
        windows,
        {log.rank: log.joined.machine if log.joined else "" for log in ranks},
        Way(phase.waiting, teams, balances, balance and balances and not _avoids(strategy)),
    )
    return msgspec.structs.replace(found, advice=advise(found)) if found else None


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
    """A straggler that a policy avoids is not balanced away as well."""
    spec = _read(strategy)
    return spec is not None and spec.on_straggler


def _last_change(ranks: Sequence[RankLog]) -> int:
    """The first step after shares changed; one worker tells it, and counts as the others do."""
    for log in ranks:
        if log.balanced:
            moment = _settled(log.balanced)
            return next((step.number for step in log.steps if step.began >= moment), 1 << 62)
    return 0


def _settled(changes: Sequence[Balanced]) -> float:
    """When shares had come close to where they are now: they are refined for long."""
    last = changes[-1]
    moment = last.time
    for change in reversed(changes):
        if max(abs(a - b) for a, b in zip(change.shares, last.shares, strict=False)) > CLOSE:
            break
        moment = change.time
    return moment


def _enough(windows: Mapping[int, RankWindow], ranks: int) -> bool:
    if not 1 < ranks == len(windows):
        return False
    laps = min(len(window.laps) for window in windows.values())
    seconds = max(window.trained for window in windows.values())
    quick = laps >= ENOUGH_LAPS and seconds >= ENOUGH_SECONDS
    return quick or (laps >= FEWEST_LAPS and seconds >= LONG_ENOUGH)
