"""Follows one run by its files, as far as the pages need it: reading is incremental and bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.collect import LineTail
from phalanx.observe.events.notes import Note, decode_notes
from phalanx.observe.events.strategy_phases import split_phases
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.speedup.from_events import judge
from phalanx.observe.speedup.speedup import Worth
from phalanx.observe.speedup.speedup_lines import lines as worth_lines
from phalanx.observe.speedup.straggler import Wait, find_waits
from phalanx.observe.summary.history import Row, make_history
from phalanx.observe.summary.progress_state import ProgressState, trained_before
from phalanx.observe.summary.run_records import LaunchRecord, PlanRecord, read_record
from phalanx.observe.summary.run_status import RUNNING, status_of
from phalanx.observe.summary.summary import read_summary
from phalanx.observe.summary.summary_fields import Summary
from phalanx.watch.feed.chart_types import Chart, Timeline
from phalanx.watch.feed.cluster_view import (
    ENDED,
    LOST,
    SILENT,
    SILENT_SECONDS,
    UP,
    ClusterView,
    ReadingsFile,
    WaitRow,
    make_cluster,
)
from phalanx.watch.feed.epoch_charts import epoch_charts
from phalanx.watch.feed.event_reader import RankReader
from phalanx.watch.feed.history import AXES, History
from phalanx.watch.feed.log_tail import LogTail, read_log
from phalanx.watch.feed.marks import marks_of
from phalanx.watch.feed.run_view import MachineRow, Mark, Progress, RunView, WorkerRow
from phalanx.watch.feed.runs_list import name_of

_BUDGET = 0.2
"""Seconds that one refresh reads at most, apart from what is begun."""
_LOOK = 2.0
"""Seconds between two looks at the status, and for new files."""
_JUDGE = 10.0
"""Seconds between two judgements of what a run's machines are worth to it."""
_MOST_NOTES = 2000
_MOST_RANKS = 4096


class RunFeed:
    """One run; ``refresh`` reads what is new, and everything else tells what has been read."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._history = History(paths)
        self._readers: dict[int, RankReader] = {}
        self._files: dict[str, ReadingsFile] = {}
        self._notes_tail = LineTail(paths.notes)
        self._notes: list[Note] = []
        self._state = ProgressState()
        self._launch = LaunchRecord()
        self._plan = PlanRecord()
        self._summary: Summary | None = None
        self._summary_stamp = 0
        self._status = ""
        self._looked = float("-inf")
        self._judged = float("-inf")
        self._worth: Worth | None = None
        self._waits: list[Wait] = []

    @property
    def title(self) -> str:
        return name_of(self.paths.id)

    @property
    def status(self) -> str:
        return self._status

    def close(self) -> None:
        """Keep what was added up for the next time; nothing can be read afterwards."""
        self._history.close()

    def refresh(self) -> bool:
        """Read what is new, a bounded part at a time; return whether there was anything."""
        now = time.monotonic()
        changed = self._look() if now - self._looked >= _LOOK else False
        until = now + _BUDGET
        while True:
            found = [reader.read(self._state, 0.0) for reader in self._readers.values()]
            changed |= any(found)
            behind = any(reader.unread for reader in self._readers.values())
            if not behind or time.monotonic() >= until:
                break
        notes = list(decode_notes(self._notes_tail.poll()))
        self._notes = [*self._notes, *notes][-_MOST_NOTES:]
        read = [file.read() for file in self._files.values()]
        more = self._history.read_more(_BUDGET)
        if now - self._judged >= _JUDGE and self._status == RUNNING and not behind:
            self._judge()
        return changed or bool(notes) or any(read) or more

    @property
    def building(self) -> float | None:
        """The share of the files that has been read; ``None`` when all has."""
        whole = sum(reader.size for reader in self._readers.values())
        left = sum(reader.unread for reader in self._readers.values())
        own = 1.0 - left / whole if whole and left else None
        shares = [share for share in (own, self._history.share_read) if share is not None]
        return min(shares, default=None)

    def view(self) -> RunView:
        launch, state, summary = self._launch, self._state, self._ended_summary
        settings = msgspec.to_builtins(launch.settings) if launch.settings else {}
        worth = summary.worth if summary else self._worth
        return RunView(
            id=self.paths.id,
            title=self.title,
            status=self._status,
            command=launch.command,
            script=launch.script,
            system=launch.system,
            settings={n: v for n, v in settings.items() if v is not None and n != "virtual"},
            strategy=self._strategy or None,
            began=launch.started_wall,
            seconds=self._seconds(),
            progress=self._progress(),
            workers=list(self._workers()),
            machines=self._machines(),
            notes=list(dict.fromkeys([*state.notes, *self._noted()])),
            worth=list(worth_lines(worth)) if worth else [],
            result=self._result(),
            marks=self._marks(),
            building=self.building,
        )

    def charts(
        self, by: str = "time", points: int = 600, first: float | None = None,
        last: float | None = None,
    ) -> list[Chart]:  # fmt: skip
        """Return the charts against ``by``: time, step or epoch; of a part of that, if asked."""
        if by not in AXES:
            raise InputError(f"there is no axis {by[:40]!r}", f"Use one of: {', '.join(AXES)}.")
        rows = self._rows()
        low = float("-inf") if first is None else first
        high = float("inf") if last is None else last
        places = [self._place_of(row, by) for row in rows]
        inside = [x if x is not None and low <= x <= high else None for x in places]
        return [
            *self._history.charts(by, points, first, last),
            *epoch_charts(rows, inside, AXES[by], points),
        ]

    def cluster(self, points: int = 300) -> ClusterView:
        waits = self._ended_summary.waits if self._ended_summary else self._waits
        states = self._machine_states()
        machines: dict[str, tuple[float | None, list[int], str]] = {
            row.name: (row.cores, row.workers, states.get(row.name, UP)) for row in self._machines()
        }
        return make_cluster(
            machines,
            {name: file.readings for name, file in self._files.items()},
            self._began(),
            points,
            [WaitRow(by=wait.waiting, late=wait.late, seconds=wait.seconds) for wait in waits],
        )

    def timeline(
        self, first: float | None = None, last: float | None = None, points: int = 600
    ) -> Timeline:
        return self._history.timeline(first, last, points)

    def log(self, rank: int, lines: int = 200) -> LogTail:
        return read_log(self.paths, rank, lines)

    # -- reading -------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Look for new files and at the status; return whether that has changed."""
        self._looked = time.monotonic()
        paths = self.paths
        if not self._launch.workers and (launch := _record(paths.launch, LaunchRecord)):
            self._launch = launch
            if launch.settings:
                self._state.epochs = launch.settings.epochs
                self._state.before = trained_before(launch.settings.resume)
        if not self._plan.machines and (plan := _record(paths.plan, PlanRecord)):
            self._plan = plan
        for rank, file in _ranks_of(paths.events):
            if rank not in self._readers and len(self._readers) < _MOST_RANKS:
                self._readers[rank] = RankReader(file, rank)
        self._readers = dict(sorted(self._readers.items()))
        for file in sorted(paths.machines.glob("*.jsonl")) if paths.machines.is_dir() else ():
            if file.stem not in self._files and file.is_file():
                self._files[file.stem] = ReadingsFile(file)
        return self._look_at_end()

    def _look_at_end(self) -> bool:
        try:
            stamp = self.paths.summary.stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp and stamp == self._summary_stamp and self._ended_summary is not None:
            return False
        if stamp != self._summary_stamp:
            self._summary_stamp = stamp
            try:
                self._summary = read_summary(self.paths)
            except InputError:  # longer than any summary
                self._summary = None
        before = self._status
        try:
            self._status = status_of(self.paths, self._logs(), len(self._ranks()) or None)
        except InputError:
            self._status = "unreadable"
        return before != self._status

    def _judge(self) -> None:
        self._judged = time.monotonic()
        if not self._strategy or self._launch.launcher == "inprocess":
            return
        helpers = {w.rank for w in self._launch.workers if w.role not in ("", "worker")}
        windows = [reader.window() for rank, reader in self._readers.items() if rank not in helpers]
        logs = aligned(windows)
        settings = self._launch.settings
        balance = settings is not None and settings.balance == "auto"
        self._worth = judge(logs, self._strategy, balance=balance)
        machines = {log.rank: log.joined.machine if log.joined else "" for log in logs}
        self._waits = find_waits(split_phases(logs, self._strategy), machines)

    # -- what is known -------------------------------------------------------------------------

    @property
    def _ended_summary(self) -> Summary | None:
        found = self._summary
        return found if found is not None and found.status != RUNNING else None

    @property
    def _strategy(self) -> str:
        settings = self._launch.settings
        joined = next((log.joined for log in self._logs() if log.joined), None)
        told = settings.strategy if settings else self._plan.strategy
        return told or (joined.strategy if joined else "")

    def _logs(self) -> list[RankLog]:
        return [reader.log for reader in self._readers.values()]

    def _ranks(self) -> list[int]:
        planned = [worker.rank for worker in self._launch.workers]
        return sorted({*planned, *self._readers})

    def _began(self) -> float:
        """Return time 0 of the run on its events' clock: when training began, if it did."""
        began = self._history.began
        if began is not None:
            return began
        joins = [log.joined.time for log in self._logs() if log.joined]
        readings = [file.readings for file in self._files.values()]
        return min(joins or [found.times[0] for found in readings if found.times], default=0.0)

    def _wall(self) -> float:
        """Return the same moment in seconds since 1970."""
        joined = next((log.joined for log in self._logs() if log.joined), None)
        if joined is None:
            return self._launch.started_wall or 0.0
        return joined.wall + self._began() - joined.time

    def _place(self, seconds: float) -> tuple[float | None, float | None]:
        """Return the step and the epoch that the run had come to after so many seconds."""
        return self._history.place(seconds, "step"), self._history.place(seconds, "epoch")

    def _place_of(self, row: Row, by: str) -> float | None:
        """Return where the end of an epoch lies on an axis."""
        ended, epoch = row["seconds"], row["epoch"]
        if by == "epoch":
            return None if epoch is None else float(epoch) + 1.0
        return None if ended is None else self._history.place(ended, by)

    def _rows(self) -> list[Row]:
        rows = make_history(self._logs(), self._began())
        return rows or (self._summary.history if self._summary else [])

    def _seconds(self) -> float | None:
        if self._ended_summary:
            return self._ended_summary.seconds
        wall = self._launch.started_wall
        if self._status == RUNNING and wall is not None:
            return max(0.0, time.time() - wall)
        ends = [log.last_time for log in self._logs() if log.last_time is not None]
        return max(0.0, max(ends) - self._began()) if ends else None

    def _progress(self) -> Progress:
        state = self._state
        ended = self._status != RUNNING
        share = 1.0 if self._status == "done" else state.share
        return Progress(
            done=state.before + state.samples,
            total=state.total_samples,
            share=share,
            left_seconds=None if ended else state.remaining,
            epoch=min(state.epoch, state.epochs or state.epoch),
            epochs=state.epochs,
        )

    def _workers(self) -> Iterator[WorkerRow]:
        summary = self._ended_summary
        told = {worker.rank: worker for worker in summary.per_worker} if summary else {}
        planned = {worker.rank: worker.machine for worker in self._launch.workers}
        shares = next(
            (r.log.balanced[-1].shares for r in self._readers.values() if r.log.balanced), []
        )
        whole = self._state.samples
        for rank in self._ranks():
            reader, live = self._readers.get(rank), self._state.workers.get(rank)
            joined = reader.log.joined if reader else None
            known = told.get(rank)
            part = live.samples / whole if live and whole else None
            fast = known.samples_per_second if known else live.rate if live else None
            stale = known.mean_staleness if known else live.staleness if live else None
            yield WorkerRow(
                rank=rank,
                machine=joined.machine if joined else planned.get(rank, ""),
                device=joined.device if joined else "",
                state=self._state_of(rank),
                epoch=live.epoch + 1 if live else None,
                loss=live.loss if live else None,
                samples_per_second=fast,
                share=shares[rank] if rank < len(shares) else part,
                waiting=known.wait_share if known else live.waiting if live else None,
                staleness=stale,
            )

    def _state_of(self, rank: int) -> str:
        live = self._state.workers.get(rank)
        if live is not None and live.finished:
            return live.finished
        if self._status != RUNNING:
            return ENDED
        return "training" if live is not None else "starting"

    def _machines(self) -> list[MachineRow]:
        rows = {
            machine.name: MachineRow(
                name=machine.name,
                cores=machine.cores or None,
                workers=[slot.rank for slot in machine.slots],
            )
            for machine in self._plan.machines
        }
        homes = {worker.rank: worker.machine for worker in self._launch.workers}
        homes |= {log.rank: log.joined.machine for log in self._logs() if log.joined}
        for rank, name in homes.items():
            row = rows.setdefault(name, MachineRow(name=name, cores=None, workers=[]))
            if rank not in row.workers:
                row.workers.append(rank)
        for name in self._files:
            rows.setdefault(name, MachineRow(name=name, cores=None, workers=[]))
        return [row for row in rows.values() if row.name]

    def _machine_states(self) -> dict[str, str]:
        lost = {r for r, worker in self._state.workers.items() if worker.finished == "lost"}
        newest = max(
            (f.readings.last.time for f in self._files.values() if f.readings.last), default=0
        )
        states: dict[str, str] = {}
        for row in self._machines():
            file = self._files.get(row.name)
            last = file.readings.last if file else None
            if self._status != RUNNING:
                states[row.name] = ENDED
            elif row.workers and lost.issuperset(row.workers):
                states[row.name] = LOST
            elif last is not None and newest - last.time > SILENT_SECONDS:
                states[row.name] = SILENT
            else:
                states[row.name] = UP
        return states

    def _noted(self) -> list[str]:
        return [noted.text for log in self._logs() for noted in log.noted]

    def _marks(self) -> list[Mark]:
        return marks_of(self._logs(), self._notes, self._began(), self._wall(), self._place)

    def _result(self) -> dict[str, float | int | str | None]:
        """The run's last figures; while it trains, those of its newest epoch."""
        summary = self._ended_summary
        source: dict[str, Any]
        if summary is None:
            rows = self._rows()
            newest = {n: v for row in rows for n, v in row.items() if v is not None}
            source = {**newest, "epochs": len(rows), "samples_per_second": self._state.rate}
            source["seconds"] = self._seconds()
            extra: dict[str, Any] = {}
        else:
            source = msgspec.structs.asdict(summary)
            extra = dict(summary.metrics)
            if late := summary.straggler:
                extra["straggler"] = f"worker {late.rank} on {late.machine}" + (
                    f": {late.cause}" if late.cause else ""
                )
        accuracies = [source.get(f"{part}_accuracy") for part in ("test", "validation", "train")]
        found = {name: source.get(name) for name in _RESULT}
        found["accuracy"] = next((value for value in accuracies if value is not None), None)
        found["loss"] = source.get("train_loss")
        predicted = {f"predicted_{name}": value for name, value in self._plan.predicted.items()}
        return {n: v for n, v in {**extra, **found, **predicted}.items() if v is not None}


_RESULT = (
    "epochs", "samples", "seconds", "samples_per_second", "step_seconds", "train_loss",
    "train_accuracy", "test_loss", "test_accuracy", "validation_loss", "validation_accuracy",
    "bytes_sent", "samples_lost", "nonfinite_steps", "checkpoints", "resumes", "emulated",
)  # fmt: skip


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


T = TypeVar("T")


def _ranks_of(events: Path) -> Iterator[tuple[int, Path]]:
    try:
        files = sorted(events.glob("rank-*.jsonl"))
    except OSError:
        return
    for file in files:
        number = file.stem.removeprefix("rank-")
        if number.isascii() and number.isdecimal() and len(number) <= 6:
            yield int(number), file


def _record(path: Path, kind: type[T]) -> T | None:
    try:
        return read_record(path, kind)
    except InputError:  # longer than Phalanx writes it
        return None
