"""Two lines, printed once after the first steps: each machine's contribution, and faster choices.

A run that is too short to judge gets neither line; a run that is too uneven gets only the first.
"""

from __future__ import annotations

from phalanx.core.words import count, listed, rough_share
from phalanx.observe.events.event_types import Balanced, Event, Joined, Steps, Switched, WorkerLost
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.speedup.from_events import ENOUGH_SECONDS, LONG_ENOUGH, judge
from phalanx.observe.speedup.speedup import Worth
from phalanx.observe.speedup.speedup_words import as_sentence

MOST_NAMED = 8
_FEW = 3
_WORTH_TELLING = 0.03
_LATER = 1.5


def lines(worth: Worth) -> tuple[str, ...]:
    """Say what each machine contributes and who waits for whom; then the advice, if any."""
    first = f"worth it? {_contributions(worth)}; {_waiting(worth)}"
    return (first, as_sentence(worth, worth.advice)) if worth.advice else (first,)


def _contributions(worth: Worth) -> str:
    unit, told = " samples/s", []
    matter = _who_matter(worth)
    for name in matter:
        part = worth.machines[name]
        told.append(f"{name} {count(part.samples_per_second)}{unit} ({rough_share(part.share)})")
        unit = ""
    rest = [part.share for name, part in worth.machines.items() if name not in matter]
    told += [f"{len(rest)} others together {rough_share(sum(rest))}"] if rest else []
    told += [f"{name} {count(rate)} until it was lost" for name, rate in worth.lost.items()]
    return ", ".join(told)


def _who_matter(worth: Worth) -> list[str]:
    """Return all machines; of many, those with the largest and smallest shares and the slowest."""
    if len(worth.machines) <= MOST_NAMED:
        return list(worth.machines)
    by_share = sorted(worth.machines, key=lambda name: worth.machines[name].share, reverse=True)
    late = {worth.waiting.name} if worth.waiting else set()
    chosen = {*by_share[:_FEW], *by_share[-_FEW:], *late}
    return [name for name in by_share if name in chosen]


def _waiting(worth: Worth) -> str:
    late = worth.waiting
    if late is None:
        return "no waiting"
    if late.share < _WORTH_TELLING:
        return "hardly any waiting"
    others = [name for name in worth.machines if name != late.name]
    who = listed(others) if len(others) <= _FEW else "the others"
    wait = "waits" if len(others) == 1 else "wait"
    return f"{who} {wait} {rough_share(late.share)} of the time for {late.name}"


class LiveWorth:
    """Collects the events of a run until they suffice for the two lines."""

    def __init__(self, strategy: str, *, balance: bool) -> None:
        self._strategy, self._balance = strategy, balance
        self._ranks: dict[int, RankLog] = {}
        self._lost: set[int] = set()
        self._workers = 0
        self._next = ENOUGH_SECONDS
        self._said = False

    def take(self, event: Event) -> tuple[str, ...]:
        """Add an event; return the lines once enough is known, else nothing."""
        if self._said or not isinstance(event, Joined | Steps | Balanced | Switched | WorkerLost):
            return ()
        self._ranks.setdefault(event.rank, RankLog(event.rank)).add(event)
        if isinstance(event, Joined):
            self._workers = event.workers
        if isinstance(event, WorkerLost):
            self._lost.add(event.worker)
        known = len(self._ranks.keys() | self._lost)
        if not isinstance(event, Steps) or known < self._workers or self._workers < 2:
            return ()
        steps = self._ranks[event.rank].steps
        trained = steps[-1].ended - steps[0].began if steps else 0.0
        return self._look(trained) if trained >= self._next else ()

    def _look(self, trained: float) -> tuple[str, ...]:
        patient = trained < LONG_ENOUGH
        self._next = _LATER * trained
        ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        found = judge(ranks, self._strategy, balance=self._balance, settled=patient)
        if found is None or (found.advice is None and patient):
            return ()
        self._said = True
        self._ranks.clear()
        return lines(found)
