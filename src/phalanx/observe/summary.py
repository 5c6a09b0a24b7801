"""What a run came to: a pure function of its files.

It never fails on a run that was stopped, lost or hardly begun: what is not known is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from phalanx.core.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.observe import history as hist
from phalanx.observe.events import Joined, MachineSample
from phalanx.observe.records import LaunchRecord, PlanRecord, read_record, read_samples
from phalanx.observe.resources import use_of, use_together
from phalanx.observe.run_status import status_of, written_exit_codes
from phalanx.observe.straggler import find_straggler
from phalanx.observe.summary_fields import (
    DataSummary,
    MachineSummary,
    Phases,
    Summary,
    SwitchSummary,
    TimeSplit,
    WorkerSummary,
)
from phalanx.observe.timeline import PhaseSteps, RankLog, read_ranks, split_phases

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True)
class RunFiles:
    """Everything that was read of one run."""

    paths: RunPaths
    plan: PlanRecord
    launch: LaunchRecord
    settings: RunSettings | None
    ranks: list[RankLog]
    samples: dict[str, list[MachineSample]]

    @property
    def joined(self) -> list[Joined]:
        return [log.joined for log in self.ranks if log.joined]

    @property
    def strategy(self) -> str | None:
        if self.settings:
            return self.settings.strategy
        return self.plan.strategy or (self.joined[0].strategy if self.joined else None)

    @property
    def workers(self) -> int | None:
        told = self.plan.workers or len(self.launch.workers) or len(self.ranks)
        return (self.joined[0].workers if self.joined else told) or None


def read_run(paths: RunPaths) -> RunFiles:
    """Read the files of a run, whichever of them exist."""
    launch = read_record(paths.launch, LaunchRecord) or LaunchRecord()
    return RunFiles(
        paths=paths,
        plan=read_record(paths.plan, PlanRecord) or PlanRecord(),
        launch=launch,
        settings=launch.settings,
        ranks=read_ranks(paths),
        samples=read_samples(paths),
    )


def summarise(
    paths: RunPaths,
    *,
    status: str | None = None,
    exit_codes: Sequence[int | None] | None = None,
) -> Summary:
    """The summary of the run in ``paths``; ``status`` is told by whoever ended it, if known."""
    return summarise_files(read_run(paths), status=status, exit_codes=exit_codes)


def summarise_files(
    run: RunFiles,
    *,
    status: str | None = None,
    exit_codes: Sequence[int | None] | None = None,
) -> Summary:
    """The same, from files that are already read."""
    paths, ranks = run.paths, run.ranks
    summary = Summary(run=paths.id, status=status or status_of(paths, ranks, run.workers))
    codes = written_exit_codes(paths) if exit_codes is None else exit_codes
    summary.exit_codes = list(codes)
    _add_settings(summary, run)
    _add_machines(summary, run)
    _add_outcome(summary, run)
    _add_steps(summary, ranks, split_phases(ranks, run.strategy or ""))
    _add_extras(summary, run)
    return summary


def _add_settings(summary: Summary, run: RunFiles) -> None:
    settings, first = run.settings, next(iter(run.joined), None)
    summary.strategy, summary.workers = run.strategy, run.workers
    summary.batch = run.plan.batch
    if settings:
        summary.seed, summary.precision = settings.seed, settings.precision
        summary.batch = settings.batch or summary.batch
        if settings.batch_per_worker and summary.workers:
            summary.batch = settings.batch_per_worker * summary.workers
    planned = next((log.planned for log in run.ranks if log.planned), None)
    if planned:
        summary.batch = planned.batch
    if first:
        summary.precision = first.precision
        summary.parameters = first.parameters
        summary.seed = first.seed if summary.seed is None else summary.seed
    summary.predicted = {"seconds": None, **run.plan.predicted}


def _add_machines(summary: Summary, run: RunFiles) -> None:
    workers = {machine.name: len(machine.slots) for machine in run.plan.machines}
    if not workers:
        workers = dict(Counter(worker.machine for worker in run.launch.workers))
    workers = workers or dict(Counter(joined.machine for joined in run.joined))
    for name in run.samples:
        workers.setdefault(name, 0)
    summary.machines = [
        MachineSummary(name=name, workers=count, resources=use_of(run.samples.get(name, [])))
        for name, count in workers.items()
    ]
    summary.resources = use_together(run.samples)


def _add_outcome(summary: Summary, run: RunFiles) -> None:
    """Epochs, losses, accuracies, and the time it all took."""
    ranks = run.ranks
    summary.history = hist.make_history(ranks, _training_began(ranks))
    summary.seconds = _elapsed(run)
    summary.phases = _phases(ranks)
    if not run.joined:
        return
    summary.epochs = len(summary.history)
    samples = sum(step.samples for log in ranks for step in log.steps)
    summary.samples = samples or sum(done.samples for log in ranks for done in log.epochs)
    train = summary.phases.train
    summary.samples_per_second = summary.samples / train if train else None
    names = {name for row in summary.history for name in row}
    for name in hist.MEASURES:
        setattr(summary, name, hist.last_value(summary.history, name))
    others = sorted(names - {*hist.MEASURES, *hist.OWN_FIELDS})
    summary.metrics = {name: hist.last_value(summary.history, name) for name in others}


def _training_began(ranks: Sequence[RankLog]) -> float | None:
    began = [log.steps[0].began for log in ranks if log.steps]
    began = began or [log.joined.time for log in ranks if log.joined]
    return min(began, default=None)


def _elapsed(run: RunFiles) -> float | None:
    """From the start of the launch (or of the first worker) to the last word of the last one."""
    ends = [log.last_time for log in run.ranks if log.last_time is not None]
    if not ends or not run.joined:
        return None
    first = min(run.joined, key=lambda joined: joined.time)
    began = first.time
    if run.launch.started_wall is not None:
        began = min(began, first.time - (first.wall - run.launch.started_wall))
    return max(ends) - began


def _phases(ranks: Sequence[RankLog]) -> Phases:
    def longest(name: str) -> float | None:
        return max((log.phases[name] for log in ranks if name in log.phases), default=None)

    phases = Phases(**{name: longest(name) for name in Phases.__struct_fields__})
    if not phases.train:
        # Cut short: a worker adds an epoch to its training time only when the epoch ends.
        spans = [log.steps[-1].ended - log.steps[0].began for log in ranks if log.steps]
        phases.train = max(spans, default=None)
    return phases


def _add_steps(summary: Summary, ranks: Sequence[RankLog], phases: Sequence[PhaseSteps]) -> None:
    """Where the time of the steps went, and who waited for whom."""
    active = [log for log in ranks if log.steps]
    summary.per_worker = [_worker(log) for log in ranks]
    if not active:
        return
    summary.time = TimeSplit(
        input=fmean(sum(s.input for s in log.steps) for log in active),
        compute=fmean(sum(s.compute for s in log.steps) for log in active),
        communicate=fmean(sum(s.send + s.reduce for s in log.steps) for log in active),
        wait=fmean(sum(s.wait + s.settle for s in log.steps) for log in active),
        update=fmean(sum(s.update for s in log.steps) for log in active),
    )
    summary.step_seconds = median(step.seconds for log in active for step in log.steps)
    free = [phase for phase in phases if not phase.lockstep]
    counts = Counter(step.staleness for phase in free for steps in phase.steps for step in steps)
    summary.staleness = dict(sorted(counts.items()))
    summary.straggler = find_straggler(phases)


def _worker(log: RankLog) -> WorkerSummary:
    worker = WorkerSummary(rank=log.rank, steps=len(log.steps))
    if log.joined:
        worker.machine, worker.device = log.joined.machine, log.joined.device
        worker.threads = log.joined.threads
    if log.finished:
        worker.peak_memory_bytes = log.finished.peak_memory
    worker.samples = sum(step.samples for step in log.steps)
    seconds = sum(step.seconds for step in log.steps)
    if log.steps and seconds > 0:
        span = log.phases.get("train") or log.steps[-1].ended - log.steps[0].began
        worker.samples_per_second = worker.samples / span if span > 0 else None
        worker.wait_share = sum(step.wait + step.settle for step in log.steps) / seconds
        worker.mean_staleness = fmean(step.staleness for step in log.steps)
    return worker


def _add_extras(summary: Summary, run: RunFiles) -> None:
    ranks = run.ranks
    sent = [log.bytes_sent for log in ranks if log.bytes_sent is not None]
    summary.bytes_sent = sum(sent) if sent else None
    switches = next((log.switches for log in ranks if log.switches), [])
    summary.switches = [
        SwitchSummary(
            at_epoch=switch.at_epoch,
            before=switch.before,
            after=switch.after,
            pause_seconds=switch.pause,
        )
        for switch in switches
    ]
    data = {(d.name, d.samples): d for log in reversed(ranks) for d in log.data}
    summary.data = [
        DataSummary(name=d.name, samples=d.samples, checksums=d.checksums)
        for _, d in sorted(data.items())
    ]
    summary.notes = list(run.joined[0].notes) if run.joined else []
    summary.versions = run.launch.versions | (run.joined[0].versions if run.joined else {})
    summary.files = sorted({saved.path for log in ranks for saved in log.saved})
