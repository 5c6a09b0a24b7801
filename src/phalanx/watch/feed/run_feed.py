"""One run as the pages see it: its state, its charts, its machines and its logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.speedup.speedup_lines import lines as worth_lines
from phalanx.observe.summary.history import Row, make_history
from phalanx.observe.summary.progress_state import WorkerState
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
from phalanx.watch.feed.run_view import MachineRow, Progress, RunView, WorkerRow
from phalanx.watch.feed.runs_list import id_of, name_of, row_of

__all__ = ["RunFeed", "compare", "csv_of"]


class RunFeed(RunReader):
    """One run; ``refresh`` reads what is new, and everything else tells what has been read."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(paths)
        self._kept_rows: list[Row] = []
        self._rows_key: tuple[float, int] | None = None

    def view(self) -> RunView:
        launch, state, summary = self.launch, self.state, self.summary
        settings = msgspec.to_builtins(launch.settings) if launch.settings else {}
        worth = summary.worth if summary else self.worth
        noted = [noted.text for log in self.logs() for noted in log.noted]
        return RunView(
            id=id_of(self.paths),
            title=name_of(self.paths.id),
            status=self.status,
            command=launch.command,
            script=launch.script,
            system=launch.system,
            settings={n: v for n, v in settings.items() if v is not None and n != "virtual"},
            strategy=self.strategy or None,
            began=launch.started_wall,
            seconds=self._seconds(),
            progress=self._progress(),
            workers=list(self._workers()),
            machines=self._machines(),
            notes=list(dict.fromkeys([*state.notes, *noted])),
            worth=list(worth_lines(worth)) if worth else [],
            result=self._result(),
            marks=marks_of(self.logs(), self.notes, self.began(), self.wall(), self._place),
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
            *self.history.charts(by, points, first, last),
            *epoch_charts(rows, inside, AXES[by], points),
        ]

    def cluster(self, points: int = 300) -> ClusterView:
        waits = [
            WaitRow(by=wait.waiting, late=wait.late, seconds=wait.seconds)
            for wait in (self.summary.waits if self.summary else self.waits)
        ]
        return make_cluster(self._machines(), self.readings, self.began(), points, waits)

    def timeline(
        self, first: float | None = None, last: float | None = None, points: int = 600
    ) -> Timeline:
        return self.history.timeline(first, last, points)

    def log(self, rank: int, lines: int = 200) -> LogTail:
        return read_log(self.paths, rank, lines)

    def _place(self, seconds: float) -> tuple[float | None, float | None]:
        """Return the step and the epoch that the run had come to after so many seconds."""
        return self.history.place(seconds, "step"), self.history.place(seconds, "epoch")

    def _place_of(self, row: Row, by: str) -> float | None:
        """Return where the end of an epoch lies on an axis."""
        ended, epoch = row["seconds"], row["epoch"]
        if by == "epoch":
            return None if epoch is None else float(epoch) + 1.0
        return None if ended is None else self.history.place(ended, by)

    def _rows(self) -> list[Row]:
        """Return the epochs of the run, made anew only if there is something new in them."""
        ended = self.summary
        if ended is not None and ended.history and ended.resumes is None:
            return ended.history
        logs, began = self.logs(), self.began()
        key = (began, sum(len(log.epochs) + len(log.logged) + len(log.settled) for log in logs))
        if key != self._rows_key:
            self._rows_key, self._kept_rows = key, make_history(logs, began)
        return self._kept_rows

    def _seconds(self) -> float | None:
        if self.summary:
            return self.summary.seconds
        wall = self.launch.started_wall
        if self.status == RUNNING and wall is not None:
            return max(0.0, time.time() - wall)
        ends = [log.last_time for log in self.logs() if log.last_time is not None]
        return max(0.0, max(ends) - self.began()) if ends else None

    def _progress(self) -> Progress:
        state = self.state
        return Progress(
            done=state.before + state.samples,
            total=state.total_samples,
            share=1.0 if self.status == "done" else state.share,
            left_seconds=state.remaining if self.status == RUNNING else None,
            epoch=min(state.epoch, state.epochs or state.epoch),
            epochs=state.epochs,
        )

    def _workers(self) -> Iterator[WorkerRow]:
        """Return what the workers do now; of a run that has ended, what they did on average."""
        summary, whole = self.summary, self.state.samples
        told = {worker.rank: worker for worker in summary.per_worker} if summary else {}
        homes = self._homes()
        balanced = next((log.balanced for log in self.logs() if log.balanced), [])
        shares = dict(enumerate(balanced[-1].shares)) if balanced else {}
        for rank in self.numbers():
            live = self.state.workers.get(rank) or WorkerState(rank)
            joined = self.ranks[rank].log.joined if rank in self.ranks else None
            known = told.get(rank)
            begun = "training" if joined else "starting"
            yield WorkerRow(
                rank=rank,
                machine=homes.get(rank, ""),
                device=joined.device if joined else "",
                state=live.finished or (begun if self.status == RUNNING else ENDED),
                epoch=live.epoch + 1 if joined else None,
                loss=live.loss,
                samples_per_second=known.samples_per_second if known else live.rate,
                share=shares.get(rank, live.samples / whole if whole else None),
                waiting=known.wait_share if known else live.waiting,
                staleness=known.mean_staleness if known else live.staleness,
            )

    def _homes(self) -> dict[int, str]:
        """Return each worker's machine."""
        planned = {worker.rank: worker.machine for worker in self.launch.workers}
        return planned | {log.rank: log.joined.machine for log in self.logs() if log.joined}

    def _machines(self) -> list[MachineRow]:
        """Return the planned machines, and those that only the workers or readings tell of."""
        homes = self._homes()
        cores = {machine.name: machine.cores or None for machine in self.plan.machines}
        lost = {rank for rank, worker in self.state.workers.items() if worker.finished == "lost"}
        rows = []
        for name in dict.fromkeys(filter(None, [*cores, *homes.values(), *self.readings])):
            ranks = sorted(rank for rank, machine in homes.items() if machine == name)
            state = LOST if ranks and lost.issuperset(ranks) else UP
            state = state if self.status == RUNNING else ENDED
            rows.append(MachineRow(name=name, cores=cores.get(name), workers=ranks, state=state))
        return rows

    def _result(self) -> dict[str, float | int | str | None]:
        """The run's last figures; while it trains, those of its newest epoch."""
        found: dict[str, Any] = {}
        if self.summary is not None:
            found = {**self.summary.metrics, **msgspec.structs.asdict(self.summary)}
        else:
            rows = self._rows()
            found = {n: value for row in rows for n, value in row.items() if value is not None}
            found["samples_per_second"] = self.state.rate
        accuracies = (found.get(f"{part}_accuracy") for part in ("test", "validation", "train"))
        found["accuracy"] = next((value for value in accuracies if value is not None), None)
        found["loss"] = found.get("train_loss")
        found |= {f"predicted_{name}": value for name, value in self.plan.predicted.items()}
        return {name: value for name, value in found.items() if isinstance(value, int | float)}


def compare(feeds: Sequence[RunFeed], by: str, points: int) -> RunComparison:
    """Compare runs by what each of them has; ``by``: time, step or epoch."""
    charts = [feed.charts(by, points) for feed in feeds]
    rows = [row_of(feed.paths) for feed in feeds]
    return make_comparison(charts, rows)
