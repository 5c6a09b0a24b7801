"""Runs what a search for the point of a switch asks for, and tells what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

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
    from phalanx.cli.request.request import Request
    from phalanx.cli.request.tuning_specs import Specs
    from phalanx.launch.launchers.launcher import Job, Launch
    from phalanx.launch.run.controller import RunOutcome
    from phalanx.observe.events.event_types import Event, MachineSample
    from phalanx.observe.summary.summary import Summary

Values = Mapping[int, float | None]


class Tuning:
    """One search: its study, its runs, its verdict."""

    def __init__(
        self, request: Request, rules: Rules, specs: Specs, metric: str, out: Output
    ) -> None:
        self._request, self._rules, self._specs = request, rules, specs
        self._metric, self._out = metric, out
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
        request, rules = self._request, self._rules
        folder = new_run(f"{request.name}-tune-switch")
        study = Study(folder, request.command, str(request.script), rules.seeds)
        study.write()
        self._out.say(
            f"at most {rules.most_runs} runs, with confirmation; every point once would take "
            f"{rules.runs_of_the_grid}, without it"
        )
        with terminate_as_interrupt():
            try:
                code = self._run_all(study)
            except KeyboardInterrupt:
                code = STOPPED
            self._tell(study, finished=code == DONE)
        return code

    def _run_all(self, study: Study) -> int:
        while (trial := self._search.next()) is not None:
            words = f"{trial.stage}: {self._specs.of(trial.point)}, seed"
            seed = self._request.options.seed + trial.seed
            self._out.say(f"[{len(self._tried) + 1}] {words} {seed}", "bold")
            outcome = self._run_one(study, trial)
            if outcome.exit_code != DONE:
                return outcome.exit_code
        return DONE

    def _run_one(self, study: Study, trial: SwitchTrial) -> RunOutcome:
        from phalanx.cli.show.progress import observe
        from phalanx.launch.run.controller import execute

        paths = new_run(self._title(trial))
        study.runs.append(paths.id)
        study.write()
        with observe(self._out, paths.id) as display:
            watcher = Watcher(display, self._metric, self._loses(trial))
            outcome = execute(self._job(trial), paths, watcher)
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
        """Only the search gives runs up: the others are there for their last value."""
        if trial.stage != SEARCH:
            return lambda values: False
        return lambda values: is_lost(values, self._baselines, self._epochs, self._rules)

    def _take(self, trial: SwitchTrial, summary: Summary) -> None:
        # The metric at the end of each epoch, as far as it is known.
        rows = ((int(row["epoch"] or 0), row.get(self._metric)) for row in summary.history)
        history = {epoch: value for epoch, value in rows if value is not None}
        value = history[max(history)] if history else None
        done = summary.status == "done"
        if trial.stage == BASELINE:
            self._check_baseline(summary, value)
            self._baselines.append(history)
            self._epochs = max(self._epochs, summary.epochs or 0)
        self._tried.append(Tried.of(trial, self._specs, self._request.options.seed, summary, value))
        self._search.take(trial, value if done else None)

    def _check_baseline(self, summary: Summary, value: float | None) -> None:
        if value is not None:
            return
        known = sorted({name for row in summary.history for name in row if row[name] is not None})
        raise InputError(
            f"'{self._metric}' was not logged by {summary.run}",
            f"Choose with --metric: {', '.join(n for n in known if n.endswith(_FIGURES))}",
        )

    def _job(self, trial: SwitchTrial) -> Job:
        batch = self._request.options.batch
        return self._request.job(self._specs.of(trial.point), batch, repeat=trial.seed)

    def _title(self, trial: SwitchTrial) -> str:
        return f"{self._request.name}-{self._specs.of(trial.point)}"

    def _tell(self, study: Study, finished: bool) -> None:
        """The table, the verdict, the report; then the JSON."""
        out = self._out
        found = self._found(study)
        study.findings = found
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

            report = str(write_report(study.paths))
            out.say(f"report  {report}")
        elif study.runs:
            out.say(f"report  phalanx report {study.paths.id}")
        out.result({"study": study.paths.id, **found, "report": report})

    def _found(self, study: Study) -> dict[str, Any]:
        verdict, rules = self._search.verdict(), self._rules
        point = verdict.point
        searched = [tried for tried in self._tried if tried.stage in (BASELINE, SEARCH)]
        return {
            "metric": self._metric,
            "tolerance": rules.tolerance,
            "grid": rules.grid,
            "point": None if point is None else self._specs.share(point),
            "spec": None if point is None or verdict.confirmed is False else self._specs.of(point),
            "behind": verdict.behind,
            "confirmed": verdict.confirmed,
            "confirmed_behind": verdict.confirmed_behind,
            "runs_to_find": len(searched),
            "runs_of_the_grid": rules.runs_of_the_grid,
            "tried": [asdict(tried) for tried in self._tried],
            "failures": dict(study.failures),
        }


_FIGURES = ("accuracy", "loss")


@dataclass
class Watcher(Observer):
    """Passes everything on to the display, and asks to end a run that has lost."""

    display: Observer
    metric: str
    loses: Callable[[Values], bool]
    lost: bool = False

    def __post_init__(self) -> None:
        self._values: dict[int, float | None] = {}

    def started(self, launch: Launch) -> None:
        self.display.started(launch)

    def event(self, event: Event) -> None:
        self.display.event(event)
        if isinstance(event, Logged) and self.metric in event.values:
            self._values[event.epoch] = event.values[self.metric]
            self.lost = self.lost or self.loses(self._values)

    def output(self, rank: int, line: str) -> None:
        self.display.output(rank, line)

    def failure(self, rank: int, line: str) -> None:
        self.display.failure(rank, line)

    def sample(self, sample: MachineSample) -> None:
        self.display.sample(sample)

    def has_seen_enough(self) -> bool:
        return self.lost

    def finished(self, summary: Summary) -> None:
        self.display.finished(summary)
