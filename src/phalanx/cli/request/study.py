"""Carry out a study: a matrix of runs, each in its own folder, and a report on all of them."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phalanx.cli.output import Output
from phalanx.cli.request.dry_run import show
from phalanx.cli.request.request import Request
from phalanx.cli.request.systems import cannot_run, ready
from phalanx.cli.show.progress import observe
from phalanx.cli.show.result_lines import describe, tell_results, tell_study
from phalanx.core.errors import DONE, SCRIPT_FAILED, STOPPED, PhalanxError, RunStopped
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths, new_run
from phalanx.core.settings import OURS
from phalanx.launch.launcher import Job
from phalanx.launch.run.controller import RunOutcome, execute
from phalanx.report.load import train_seconds
from phalanx.report.noise import NOISE, SHORT_SECONDS


@dataclass(frozen=True)
class StudyCell:
    """One run of the matrix."""

    strategy: str
    batch: int | None
    repeat: int
    system: str = OURS
    title: str = ""
    """The name of the row, if systems are compared."""

    def label(self, batches: int, repeats: int) -> str:
        """Name the run by what distinguishes it from the others of its study."""
        parts = [self.title or self.strategy]
        if batches > 1:
            parts.append(f"batch {self.batch}")
        if repeats > 1:
            parts.append(f"repeat {self.repeat + 1}")
        return ", ".join(parts)


def alternating(
    rows: Sequence[tuple[str, str, str]], batches: Sequence[int | None], repeat: int
) -> list[StudyCell]:
    """Combine every row (strategy, system, title) with every batch. Repeats are the outer loop and
    every second one runs backwards, so that a machine that slows down or warms up does not favour
    the first row."""
    cells = []
    for index in range(repeat):
        inner = [
            StudyCell(strategy, batch, index, system, title)
            for batch in batches
            for strategy, system, title in rows
        ]
        cells += inner if index % 2 == 0 else inner[::-1]
    return cells


@dataclass
class Study:
    """``study.json``, kept up to date during the runs."""

    paths: RunPaths
    command: list[str]
    script: str
    repeat: int
    started_wall: float = field(default_factory=time.time)
    runs: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        record = {"study": self.paths.id, **vars(self)}
        del record["paths"]
        write_whole(self.paths.study, json.dumps(record, indent=2) + "\n")


class StudyRun:
    """Run the cells one after another; a run that fails is marked, and the next one starts."""

    def __init__(
        self,
        request: Request,
        cells: list[StudyCell],
        out: Output,
        make_job: Callable[[StudyCell], Job] | None = None,
    ) -> None:
        self._out = out
        self._cells = cells
        self._batches = len({cell.batch for cell in cells})
        # Every plan is made before the first run starts, so that mistakes show at once.
        self.jobs = [
            make_job(c) if make_job else request.job(c.strategy, c.batch, repeat=c.repeat)
            for c in cells
        ]
        self._name = request.name
        self._repeat = request.options.repeat
        self._script = str(request.script)
        self._command = request.command
        self._outcomes: list[RunOutcome] = []

    def names(self) -> list[str]:
        labels = [cell.label(self._batches, self._repeat) for cell in self._cells]
        ends = ["-simulated" if job.settings.virtual else "" for job in self.jobs]
        pairs = zip(labels, ends, strict=True)
        return [f"{self._name}-{label.replace(' ', '')}{end}" for label, end in pairs]

    def execute(self) -> int:
        study = Study(new_run(f"{self._name}-study"), self._command, self._script, self._repeat)
        study.write()
        stopped = False
        with terminate_as_interrupt():
            try:
                stopped = self._run_all(study)
            except (KeyboardInterrupt, RunStopped):
                stopped = True
            self._tell(study, stopped)
        return STOPPED if stopped else self._exit_code()

    def _run_all(self, study: Study) -> bool:
        """Run all jobs of the study; return whether the user stopped it."""
        for number, (cell, name, job) in enumerate(
            zip(self._cells, self.names(), self.jobs, strict=True), start=1
        ):
            label = cell.label(self._batches, self._repeat)
            self._out.say(f"[{number}/{len(self.jobs)}] {label}", "bold")
            outcome = self._run_one(study, name, job)
            self._outcomes.append(outcome)
            if outcome.exit_code == STOPPED:
                return True
        return self._again(study)

    def _again(self, study: Study) -> bool:
        """Repeat the two runs that decide the verdict, if their speed-up is implausibly high."""
        pair = in_question(self._outcomes) if self._repeat == 1 and self._batches == 1 else []
        if pair:
            self._out.say("repeating: a speed-up above the number of workers", "bold")
        for index in pair:
            outcome = self._run_one(study, self.names()[index], self.jobs[index])
            self._outcomes.append(outcome)
            if outcome.exit_code == STOPPED:
                return True
        return False

    def _run_one(self, study: Study, name: str, job: Job) -> RunOutcome:
        paths = new_run(name)
        study.runs.append(paths.id)
        study.write()
        try:
            job = ready(job, self._out)
            with observe(self._out, paths.id) as observer:
                outcome = execute(job, paths, observer)
        except PhalanxError as error:
            outcome = cannot_run(job, paths, error)
        if outcome.error:
            self._out.problem(outcome.error)
            study.failures[paths.id] = outcome.error.cause
            study.write()
        self._out.say("      " + describe(outcome.summary))
        return outcome

    def _tell(self, study: Study, stopped: bool) -> None:
        """Show the table and the verdict, write the report, and print the JSON."""
        report = None
        if stopped:
            # Drawing takes seconds, and a user who stops a study does not want to wait.
            if study.runs:
                tell_results(study.paths, self._out)
            self._out.say(f"stopped  {study.paths.folder}")
            self._out.say(f"report   phalanx report {study.paths.id}")
        elif study.runs:
            report = str(tell_study(study.paths, self._out))
        self._out.result(self._result(study, report))

    def _result(self, study: Study, report: str | None) -> dict[str, Any]:
        return {
            "study": study.paths.id,
            "runs": [msgspec.to_builtins(outcome.summary) for outcome in self._outcomes],
            "report": report,
            "failures": study.failures,
        }

    def _exit_code(self) -> int:
        codes = {outcome.exit_code for outcome in self._outcomes} - {DONE}
        if not codes:
            return DONE
        return codes.pop() if len(codes) == 1 else SCRIPT_FAILED


MOST_AGAIN = 60.0
"""Seconds; if ``single`` trained for longer, nothing is repeated unless the user asks."""


def in_question(outcomes: Sequence[RunOutcome]) -> list[int]:
    """Return the indices of the fastest run and of ``single``, if that is slow beyond belief."""
    taken = {
        i: seconds
        for i, outcome in enumerate(outcomes)
        if outcome.exit_code == DONE and (seconds := train_seconds(outcome.summary))
    }
    if any(outcome.summary.simulated for outcome in outcomes):
        return []  # a repeated simulation gives the same figures
    alone = [i for i in taken if outcomes[i].summary.strategy == "single"]
    others = [i for i in taken if i not in alone]
    if not alone or not others or not SHORT_SECONDS <= taken[alone[0]] <= MOST_AGAIN:
        return []
    best = min(others, key=lambda i: taken[i])
    most = (1.0 + NOISE) * (outcomes[best].summary.workers or 1)
    return [best, alone[0]] if taken[alone[0]] > most * taken[best] else []


def start_of(request: Request) -> Output:
    """Return the output for a comparison, and print the warnings about its request."""
    out = Output(request.options.json)
    for warning in request.warnings:
        out.note(f"warning: {warning}")
    return out


def show_or_execute(study: StudyRun, out: Output, dry_run: bool) -> int:
    if not dry_run:
        return study.execute()

    return show(list(zip(study.names(), study.jobs, strict=True)), out)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let ``phalanx stop`` end a study between runs, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows handlers in the main thread only
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
