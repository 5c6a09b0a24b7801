"""Runs what a search for the point of a switch asks for, and tells what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import msgspec

from phalanx.cli.request.study import Study, terminate_as_interrupt
from phalanx.cli.show.result_lines import describe
from phalanx.cli.show.tuning_words import Tried, print_tried, sentences
from phalanx.core.errors import DONE, STOPPED, InputError
from phalanx.core.run_folder.run_paths import new_run
from phalanx.launch.run.observer import Observer
from phalanx.observe.events.event_types import Logged
from phalanx.plan.switch_search import BASELINE, SEARCH, Rules, SwitchSearch, SwitchTrial, is_lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.cli.output import Output
    from phalanx.cli.planning.virtual_cluster import VirtualMachines
    from phalanx.cli.request.request import Request
    from phalanx.cli.request.tuning_specs import Specs
    from phalanx.launch.launcher import Job
    from phalanx.launch.run.controller import RunOutcome
    from phalanx.observe.events.event_types import Event
    from phalanx.observe.summary.summary import Summary

Values = Mapping[int, float | None]


class Tuning:
    """One search: its study, its runs, its verdict.

    On ``virtual`` machines it is simulated; its confirmation is real, and a study of its own.
    """

    def __init__(
        self, request: Request, rules: Rules, specs: Specs, metric: str, out: Output,
        virtual: VirtualMachines | None,
    ) -> None:  # fmt: skip
        self._request, self._rules, self._specs = request, rules, specs
        self._metric, self._out, self._virtual = metric, out, virtual
        self._studies: list[Study] = []
        self._search = SwitchSearch(rules)
        self._baselines: list[dict[int, float]] = []
        self._epochs = 0
        self._tried: list[Tried] = []
        # Planned before anything starts, so that no mistake waits in the queue.
        if self._job(SwitchTrial(BASELINE, rules.grid, 0)).plan.workers == 1:
            raise InputError("tune-switch needs at least 2 workers", "Try --workers 2.")

    def show(self) -> int:
        """Only what would be started first: the rest depends on what comes of it."""
        from phalanx.cli.request.dry_run import show

        grid = self._rules.grid
        trials = [SwitchTrial(BASELINE, grid, 0), SwitchTrial(SEARCH, grid // 2, 0)]
        return show([(self._title(trial), self._job(trial)) for trial in trials], self._out)

    def execute(self) -> int:
        rules, study = self._rules, self._study("tune-switch", self._rules.seeds)
        self._out.say(
            f"at most {rules.most_runs} runs, with confirmation; every point once would take "
            f"{rules.runs_of_the_grid}, without it"
        )
        if self._virtual:
            self._out.say("the search is simulated, its confirmation is real")
        with terminate_as_interrupt():
            try:
                code = self._run_all(study)
            except KeyboardInterrupt:
                code = STOPPED
            self._tell(study, finished=code == DONE)
        return code

    def _study(self, name: str, seeds: int) -> Study:
        request, folder = self._request, new_run(f"{self._request.name}-{name}")
        study = Study(folder, request.command, str(request.script), seeds)
        study.write()
        self._studies.append(study)
        return study

    def _simulated(self, trial: SwitchTrial) -> bool:
        return self._virtual is not None and trial.stage in (BASELINE, SEARCH)

    def _run_all(self, study: Study) -> int:
        while (trial := self._search.next()) is not None:
            simulated = self._simulated(trial)
            words = f"{trial.stage}{', simulated' * simulated}: {self._specs.of(trial.point)}, seed"
            words += f" {self._request.options.seed + trial.seed}"
            self._out.say(f"[{len(self._tried) + 1}] {words}", "bold")
            if self._virtual and not simulated and len(self._studies) == 1:
                study = self._study("tune-switch-confirm", self._rules.confirm)
            if (code := self._run_one(study, trial).exit_code) != DONE:
                return code
        return DONE

    def _run_one(self, study: Study, trial: SwitchTrial) -> RunOutcome:
        from phalanx.cli.show.progress import observe
        from phalanx.launch.run.controller import execute

        paths = new_run(self._title(trial))
        study.runs.append(paths.id)
        study.write()
        watcher = Watcher(self._metric, self._loses(trial))
        with observe(self._out, paths.id, watch=watcher) as display:
            outcome = execute(self._job(trial), paths, display)
        if outcome.error:
            self._out.problem(outcome.error)
            study.failures[paths.id] = outcome.error.cause
        elif watcher.lost and outcome.summary.status == "stopped":
            study.failures[paths.id] = "clearly worse: ended early"
        study.write()
        self._out.say("      " + describe(outcome.summary))
        if outcome.exit_code == DONE:
            self._take(trial, outcome.summary)
        return outcome

    def _loses(self, trial: SwitchTrial) -> Callable[[Values], bool]:
        """Only the search gives runs up, unless a synchronous end may make up for what is lost."""
        gives_up = trial.stage == SEARCH and not self._specs.reverse
        known = self._baselines, self._epochs, self._rules
        return lambda values: gives_up and is_lost(values, *known)

    def _take(self, trial: SwitchTrial, summary: Summary) -> None:
        # The metric at the end of each epoch, as far as it is known.
        rows = ((int(row["epoch"] or 0), row.get(self._metric)) for row in summary.history)
        history = {epoch: value for epoch, value in rows if value is not None}
        value = history[max(history)] if history else None
        if trial.stage == BASELINE:
            self._check_baseline(summary, value)
            self._baselines.append(history)
            self._epochs = max(self._epochs, summary.epochs or 0)
        self._tried.append(Tried.of(trial, self._specs, self._request.options.seed, summary, value))
        self._search.take(trial, value if summary.status == "done" else None)

    def _check_baseline(self, summary: Summary, value: float | None) -> None:
        if value is not None:
            return
        known = sorted({name for row in summary.history for name in row if row[name] is not None})
        figures = ", ".join(name for name in known if name.endswith(("accuracy", "loss")))
        cause = f"'{self._metric}' was not logged by {summary.run}"
        raise InputError(cause, f"Choose with --metric: {figures}")

    def _job(self, trial: SwitchTrial) -> Job:
        batch = self._request.options.batch
        job = self._request.job(self._specs.of(trial.point), batch, repeat=trial.seed)
        if self._virtual is None:
            return job
        if self._simulated(trial):
            return self._virtual.simulated(job)
        # Speeds decide how old gradients are: they are those of the search.
        slow = self._virtual.wishes.speeds_of(job.plan.workers)
        return replace(job, settings=msgspec.structs.replace(job.settings, slow=slow))

    def _title(self, trial: SwitchTrial) -> str:
        name = f"{self._request.name}-{self._specs.of(trial.point)}"
        return f"{name}-simulated" if self._simulated(trial) else name

    def _tell(self, study: Study, finished: bool) -> None:
        """The table, the verdict, the report; then the JSON."""
        out = self._out
        study.findings = found = self._found()
        study.write()
        if self._tried:
            out.say()
            print_tried(self._tried, self._metric, out.human)
            out.say()
        for sentence in sentences(self._search, self._specs, self._tried, self._metric):
            out.human.print(sentence, soft_wrap=False)
        report = None
        if finished:
            from phalanx.report.html import write_report

            reports = [str(write_report(each.paths)) for each in self._studies]
            out.say("\n".join(f"report  {each}" for each in reports))
            report = reports[0]
        elif study.runs:
            out.say(f"report  phalanx report {study.paths.id}")
        out.result({"study": study.paths.id, **found, "report": report})

    def _found(self) -> dict[str, Any]:
        verdict, rules = self._search.verdict(), self._rules
        point = verdict.point
        return {
            "simulated": self._virtual is not None,
            "confirm_study": self._studies[-1].paths.id if len(self._studies) > 1 else None,
            "metric": self._metric,
            "tolerance": rules.tolerance,
            "grid": rules.grid,
            "point": None if point is None else self._specs.share(point),
            "spec": None if point is None or verdict.confirmed is False else self._specs.of(point),
            "behind": verdict.behind,
            "confirmed": verdict.confirmed,
            "confirmed_behind": verdict.confirmed_behind,
            "runs_to_find": sum(tried.stage in (BASELINE, SEARCH) for tried in self._tried),
            "runs_of_the_grid": rules.runs_of_the_grid,
            "tried": [asdict(tried) for tried in self._tried],
            "failures": {run: why for s in self._studies for run, why in s.failures.items()},
        }


class Watcher(Observer):
    """Asks to end a run that has lost."""

    def __init__(self, metric: str, loses: Callable[[Values], bool]) -> None:
        self._metric, self._loses = metric, loses
        self._values: dict[int, float | None] = {}
        self.lost = False

    def event(self, event: Event) -> None:
        if isinstance(event, Logged) and self._metric in event.values:
            self._values[event.epoch] = event.values[self._metric]
            self.lost = self.lost or self._loses(self._values)

    def has_seen_enough(self) -> bool:
        return self.lost
