"""One run as the pages see it: its state, its charts, its machines and its logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.speedup.speedup_lines import lines as worth_lines
from phalanx.observe.speedup.straggler import Straggler
from phalanx.observe.summary.history import Row, make_history
from phalanx.observe.summary.run_status import RUNNING
from phalanx.watch.feed.chart_types import Chart, Timeline
from phalanx.watch.feed.cluster_view import (
    ENDED,
    LOST,
    UP,
    ClusterView,
    WaitRow,
    make_cluster,
)
from phalanx.watch.feed.comparison import RunComparison, csv_of, make_comparison
from phalanx.watch.feed.epoch_charts import epoch_charts
from phalanx.watch.feed.history import AXES
from phalanx.watch.feed.marks import marks_of
from phalanx.watch.feed.reading.log_tail import LogTail, read_log
from phalanx.watch.feed.reading.run_reader import RunReader
from phalanx.watch.feed.run_view import MachineRow, Mark, Progress, RunView, WorkerRow
from phalanx.watch.feed.runs_list import id_of, name_of, row_of

__all__ = ["RunFeed", "compare", "csv_of"]


class RunFeed:
    """One run; ``refresh`` reads what is new, and everything else tells what has been read."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._run = RunReader(paths)
        self._kept_rows: list[Row] = []
        self._rows_key: tuple[float, int] | None = None

    @property
    def title(self) -> str:
        return name_of(self.paths.id)

    @property
    def status(self) -> str:
        return self._run.status

    @property
    def building(self) -> float | None:
        """The share of the run's files that has been read; ``None`` when all has."""
        return self._run.building

    def refresh(self) -> bool:
        """Read what is new, a bounded part at a time; return whether there was anything."""
        return self._run.refresh()

    def close(self) -> None:
        """Keep what was added up for the next time; nothing can be read afterwards."""
        self._run.close()

    def view(self) -> RunView:
        launch, state, summary = self._run.launch, self._run.state, self._run.summary
        settings = msgspec.to_builtins(launch.settings) if launch.settings else {}
        worth = summary.worth if summary else self._run.worth
        return RunView(
            id=id_of(self.paths),
            title=self.title,
            status=self._run.status,
            command=launch.command,
            script=launch.script,
            system=launch.system,
            settings={n: v for n, v in settings.items() if v is not None and n != "virtual"},
            strategy=self._run.strategy or None,
            began=launch.started_wall,
            seconds=self._seconds(),
            progress=self._progress(),
            workers=list(self._workers()),
            machines=self._machines(),
            notes=list(dict.fromkeys([*state.notes, *self._noted()])),
            worth=list(worth_lines(worth)) if worth else [],
            result=self._result(),
            marks=self._marks(),
            building=self._run.building,
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
            *self._run.history.charts(by, points, first, last),
            *epoch_charts(rows, inside, AXES[by], points),
        ]

    def cluster(self, points: int = 300) -> ClusterView:
        run = self._run
        waits = [
            WaitRow(by=wait.waiting, late=wait.late, seconds=wait.seconds)
            for wait in (run.summary.waits if run.summary else run.waits)
        ]
        return make_cluster(self._machines(), run.readings, run.began(), points, waits)

    def timeline(
        self, first: float | None = None, last: float | None = None, points: int = 600
    ) -> Timeline:
        return self._run.history.timeline(first, last, points)

    def log(self, rank: int, lines: int = 200) -> LogTail:
        return read_log(self.paths, rank, lines)

    def _place(self, seconds: float) -> tuple[float | None, float | None]:
        """Return the step and the epoch that the run had come to after so many seconds."""
        return self._run.history.place(seconds, "step"), self._run.history.place(seconds, "epoch")

    def _place_of(self, row: Row, by: str) -> float | None:
        """Return where the end of an epoch lies on an axis."""
        ended, epoch = row["seconds"], row["epoch"]
        if by == "epoch":
            return None if epoch is None else float(epoch) + 1.0
        return None if ended is None else self._run.history.place(ended, by)

    def _rows(self) -> list[Row]:
        """Return the epochs of the run, made anew only if there is something new in them."""
        ended = self._run.summary
        if ended is not None and ended.history and ended.resumes is None:
            return ended.history
        logs, began = self._run.logs(), self._run.began()
        key = (began, sum(len(log.epochs) + len(log.logged) + len(log.settled) for log in logs))
        if key != self._rows_key:
            self._rows_key, self._kept_rows = key, make_history(logs, began)
        return self._kept_rows

    def _seconds(self) -> float | None:
        if self._run.summary:
            return self._run.summary.seconds
        wall = self._run.launch.started_wall
        if self._run.status == RUNNING and wall is not None:
            return max(0.0, time.time() - wall)
        ends = [log.last_time for log in self._run.logs() if log.last_time is not None]
        return max(0.0, max(ends) - self._run.began()) if ends else None

    def _progress(self) -> Progress:
        state = self._run.state
        ended = self._run.status != RUNNING
        share = 1.0 if self._run.status == "done" else state.share
        return Progress(
            done=state.before + state.samples,
            total=state.total_samples,
            share=share,
            left_seconds=None if ended else state.remaining,
            epoch=min(state.epoch, state.epochs or state.epoch),
            epochs=state.epochs,
        )

    def _workers(self) -> Iterator[WorkerRow]:
        summary = self._run.summary
        told = {worker.rank: worker for worker in summary.per_worker} if summary else {}
        planned = {worker.rank: worker.machine for worker in self._run.launch.workers}
        shares = next(
            (r.log.balanced[-1].shares for r in self._run.ranks.values() if r.log.balanced), []
        )
        whole = self._run.state.samples
        for rank in self._run.numbers():
            reader, live = self._run.ranks.get(rank), self._run.state.workers.get(rank)
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
        live = self._run.state.workers.get(rank)
        if live is not None and live.finished:
            return live.finished
        if self._run.status != RUNNING:
            return ENDED
        return "training" if live is not None else "starting"

    def _machines(self) -> list[MachineRow]:
        """Return the planned machines, and those that only the workers or readings tell of."""
        run, homes = self._run, {worker.rank: worker.machine for worker in self._run.launch.workers}
        homes |= {log.rank: log.joined.machine for log in run.logs() if log.joined}
        cores = {machine.name: machine.cores or None for machine in run.plan.machines}
        lost = {rank for rank, worker in run.state.workers.items() if worker.finished == "lost"}
        rows = []
        for name in dict.fromkeys(filter(None, [*cores, *homes.values(), *run.readings])):
            ranks = sorted(rank for rank, machine in homes.items() if machine == name)
            state = LOST if ranks and lost.issuperset(ranks) else UP
            state = state if run.status == RUNNING else ENDED
            rows.append(MachineRow(name=name, cores=cores.get(name), workers=ranks, state=state))
        return rows

    def _noted(self) -> list[str]:
        return [noted.text for log in self._run.logs() for noted in log.noted]

    def _marks(self) -> list[Mark]:
        return marks_of(
            self._run.logs(), self._run.notes, self._run.began(), self._run.wall(), self._place
        )

    def _result(self) -> dict[str, float | int | str | None]:
        """The run's last figures; while it trains, those of its newest epoch."""
        summary = self._run.summary
        source: dict[str, Any]
        if summary is None:
            rows = self._rows()
            newest = {n: v for row in rows for n, v in row.items() if v is not None}
            source = {**newest, "epochs": len(rows), "samples_per_second": self._run.state.rate}
            source["seconds"] = self._seconds()
            extra: dict[str, Any] = {}
        else:
            source = msgspec.structs.asdict(summary)
            extra = dict(summary.metrics)
            if late := summary.straggler:
                extra["straggler"] = _straggler(late)
        accuracies = [source.get(f"{part}_accuracy") for part in ("test", "validation", "train")]
        found = {name: source.get(name) for name in _RESULT}
        found["accuracy"] = next((value for value in accuracies if value is not None), None)
        found["loss"] = source.get("train_loss")
        predicted = {f"predicted_{name}": value for name, value in self._run.plan.predicted.items()}
        return {n: v for n, v in {**extra, **found, **predicted}.items() if v is not None}


_RESULT = (
    "epochs", "samples", "seconds", "samples_per_second", "step_seconds", "train_loss",
    "train_accuracy", "test_loss", "test_accuracy", "validation_loss", "validation_accuracy",
    "bytes_sent", "samples_lost", "nonfinite_steps", "checkpoints", "resumes", "emulated",
)  # fmt: skip


def _straggler(late: Straggler) -> str:
    where = f" on {late.machine}" if late.machine else ""
    return f"worker {late.rank}{where}{f': {late.cause}' if late.cause else ''}"


def compare(feeds: Sequence[RunFeed], by: str, points: int) -> RunComparison:
    """Compare runs by what each of them has; ``by``: time, step or epoch."""
    charts = [feed.charts(by, points) for feed in feeds]
    rows = [row_of(feed.paths) for feed in feeds]
    return make_comparison(charts, rows)
