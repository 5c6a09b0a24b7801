"""Reads the files of one run while they are written: everything but what the roll-ups add up.

Reading is incremental, and each refresh reads a bounded part. A run that is not watched pays
nothing: nobody asks its workers.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.collect import LineTail
from phalanx.observe.events.notes import Note, decode_notes
from phalanx.observe.events.strategy_phases import split_phases
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.speedup.from_events import judge
from phalanx.observe.speedup.speedup import Worth
from phalanx.observe.speedup.straggler import Wait, find_waits
from phalanx.observe.summary.progress_state import ProgressState, trained_before
from phalanx.observe.summary.run_records import LaunchRecord, PlanRecord, read_record
from phalanx.observe.summary.run_status import RUNNING, status_of
from phalanx.observe.summary.summary import read_summary
from phalanx.observe.summary.summary_fields import Summary
from phalanx.watch.feed.cluster_view import Readings
from phalanx.watch.feed.history import History
from phalanx.watch.feed.marks import MOST
from phalanx.watch.feed.reading.event_reader import RankReader
from phalanx.watch.feed.runs_list import UNREADABLE

_BUDGET = 0.2
"""Seconds that one refresh reads at most, apart from what is begun."""
_LOOK = 2.0
"""Seconds between two looks at the status, and for new files."""
_JUDGE = 20.0
"""Seconds between two judgements of what a run's machines are worth to it."""


class RunReader:
    """What is known of one run so far."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.history = History(paths)
        self.ranks: dict[int, RankReader] = {}
        self.readings: dict[str, Readings] = {}
        self.notes: deque[Note] = deque(maxlen=MOST)
        self.state = ProgressState()
        self.launch = LaunchRecord()
        self.plan = PlanRecord()
        self.status = ""
        self.worth: Worth | None = None
        self.waits: list[Wait] = []
        """What a run that is still going on is worth, and who waits: by its newest steps."""
        self._notes_tail = LineTail(paths.notes)
        self._summary: Summary | None = None
        self._looked = float("-inf")
        self._judged = float("-inf")

    def refresh(self) -> bool:
        """Read what is new, a bounded part at a time; return whether there was anything."""
        now = time.monotonic()
        changed = self._look() if now - self._looked >= _LOOK else False
        behind = True
        while behind and time.monotonic() < now + _BUDGET:
            found = [reader.read(self.state) for reader in self.ranks.values()]
            changed |= any(found)
            behind = any(reader.tail.unread for reader in self.ranks.values())
        if changed and self.status != RUNNING:
            self._looked = float("-inf")  # what the workers wrote last tells how the run ended
        notes = list(decode_notes(self._notes_tail.poll()))
        self.notes.extend(notes)
        read = [one.read() for one in self.readings.values()]
        more = self.history.read_more(_BUDGET)
        if self.status == RUNNING and not behind and now - self._judged >= _JUDGE:
            self._judged = now
            self._judge()
        return changed or bool(notes) or any(read) or more

    @property
    def building(self) -> float | None:
        """The share of the files that has been read; ``None`` when all has."""
        whole = sum(reader.tail.size for reader in self.ranks.values())
        left = sum(reader.tail.unread for reader in self.ranks.values())
        own = 1.0 - left / whole if whole and left else None
        shares = [share for share in (own, self.history.share_read) if share is not None]
        return min(shares, default=None)

    def close(self) -> None:
        """Keep what was added up for the next time; nothing can be read afterwards."""
        self.history.close()

    @property
    def summary(self) -> Summary | None:
        """The summary of a run that has ended."""
        found = self._summary
        return found if found is not None and found.status != RUNNING else None

    @property
    def strategy(self) -> str:
        settings = self.launch.settings
        joined = next((log.joined for log in self.logs() if log.joined), None)
        told = settings.strategy if settings else self.plan.strategy
        return told or (joined.strategy if joined else "")

    def logs(self) -> list[RankLog]:
        return [reader.log for reader in self.ranks.values()]

    def numbers(self) -> list[int]:
        planned = [worker.rank for worker in self.launch.workers]
        return sorted({*planned, *self.ranks})

    def began(self) -> float:
        """Return time 0 of the run on its events' clock: when training began, if it did."""
        began = self.history.began
        if began is not None:
            return began
        joins = [log.joined.time for log in self.logs() if log.joined]
        readings = [found.times[0] for found in self.readings.values() if found.times]
        return min(joins or readings, default=0.0)

    def wall(self) -> float:
        """Return the same moment in seconds since 1970."""
        joined = next((log.joined for log in self.logs() if log.joined), None)
        if joined is None:
            return self.launch.started_wall or 0.0
        return joined.wall + self.began() - joined.time

    def _look(self) -> bool:
        """Look for new files and at the status; return whether that has changed."""
        self._looked, before = time.monotonic(), self.status
        try:
            self._read_records()
        except InputError:  # one is longer than Phalanx writes it
            self.status = UNREADABLE
        return before != self.status

    def _read_records(self) -> None:
        paths = self.paths
        for file in sorted(paths.events.glob("rank-*.jsonl")):
            if found := re.fullmatch(r"rank-([0-9]{1,6})", file.stem):
                self.ranks.setdefault(int(found[1]), RankReader(file, int(found[1])))
        self.ranks = dict(sorted(self.ranks.items()))
        for file in sorted(paths.machines.glob("*.jsonl")):
            self.readings.setdefault(file.stem, Readings(file))
        self.launch = read_record(paths.launch, LaunchRecord) or self.launch
        self.plan = read_record(paths.plan, PlanRecord) or self.plan
        if self.launch.settings and self.state.epochs is None:
            self.state.epochs = self.launch.settings.epochs
            self.state.before = trained_before(self.launch.settings.resume)
        self._summary = read_summary(paths)
        self.status = status_of(paths, self.logs(), len(self.numbers()) or None)

    def _judge(self) -> None:
        if not self.strategy or self.launch.launcher == "inprocess":
            return
        helpers = {w.rank for w in self.launch.workers if w.role not in ("", "worker")}
        windows = [reader.window() for rank, reader in self.ranks.items() if rank not in helpers]
        logs = aligned(windows)
        settings = self.launch.settings
        balance = settings is not None and settings.balance == "auto"
        self.worth = judge(logs, self.strategy, balance=balance)
        machines = {log.rank: log.joined.machine if log.joined else "" for log in logs}
        self.waits = find_waits(split_phases(logs, self.strategy), machines)


def aligned(logs: Sequence[RankLog]) -> list[RankLog]:
    """Cut the newest steps of several workers so that all begin with the same synchronisation.

    Workers that step together begin a step at about the same moment, so the cut is between two.
    """
    cuts = [
        (first.began + second.began) / 2
        for log in logs
        for first, second in list(pairwise(log.rows))[:1]
    ]
    cut = max(cuts, default=0.0)
    return [
        replace(
            log,
            steps=[step for step in log.steps if step.began >= cut],
            rounds=[met for met in log.rounds if met.began >= cut],
        )
        for log in logs
    ]
