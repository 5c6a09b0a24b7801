"""Summarise a run from its files alone.

This never fails on a run that was stopped, lost or hardly begun: unknown figures are null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import describe_emulation
from phalanx.observe.events.event_types import Saved
from phalanx.observe.events.strategy_phases import split_phases
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.machines import resources
from phalanx.observe.speedup.causes import explain
from phalanx.observe.speedup.from_events import basis_of, judge
from phalanx.observe.summary import history as hist
from phalanx.observe.summary.history import MOST_GENERATIONS, ResumeSource, source_of, went_on
from phalanx.observe.summary.run_records import RunFiles, read_record, read_run
from phalanx.observe.summary.run_status import DONE, RUNNING, status_of, written_exit_codes
from phalanx.observe.summary.summary_fields import (
    CheckpointSummary,
    DataSummary,
    MachineSummary,
    Phases,
    RefusedSummary,
    Summary,
    SwitchSummary,
)
from phalanx.observe.summary.summary_steps import add_bytes, add_shares, add_steps

__all__ = ["Summary", "summarise"]

FIRST = 16
"""How many of the skipped steps are listed, each with its reason."""
MOST_STEPS = 2048
"""How many steps of a worker, spread over the run, show what a straggler costs."""
NEWEST = 64
"""How many of the newest checkpoints are listed with their training time."""


def read_summary(paths: RunPaths) -> Summary | None:
    """Return the written summary; its ``run`` is always the name of the folder."""
    summary = read_record(paths.summary, Summary)
    if summary is not None:
        summary.run = paths.id
    return summary


def summarise(
    paths: RunPaths, *, status: str | None = None, exit_codes: Sequence[int | None] | None = None
) -> Summary:
    """Summarise the run in ``paths``; ``status``: as the controller knows it, if there is one."""
    return summarise_files(read_run(paths), status=status, exit_codes=exit_codes)


def summarise_files(
    run: RunFiles,
    *,
    status: str | None = None,
    exit_codes: Sequence[int | None] | None = None,
    generation: int = 0,
) -> Summary:
    """Summarise files that are already read; ``generation`` counts the runs resumed from it."""
    paths, ranks = run.paths, run.ranks
    summary = Summary(run=paths.id, status=status or status_of(paths, ranks, run.workers))
    codes = written_exit_codes(paths) if exit_codes is None else exit_codes
    summary.exit_codes = list(codes)
    _add_settings(summary, run)
    _add_machines(summary, run)
    _add_outcome(summary, run, generation)
    ranks = [log for log in ranks if log.rank not in run.helpers]
    add_steps(summary, ranks, split_phases(ranks, run.strategy or ""))
    add_shares(summary, ranks)
    if run.launch.ours:  # another system's processes do not count the bytes that they send
        add_bytes(summary, ranks)
    _add_worth(summary, run)
    _add_extras(summary, run)
    return summary


def _add_worth(summary: Summary, run: RunFiles) -> None:
    if run.launch.launcher == "inprocess" or not run.strategy:
        return  # workers in one process take turns, so their times say nothing about machines
    balance = run.settings is not None and run.settings.balance == "auto"
    summary.worth = judge(run.ranks, run.strategy, balance=balance)
    training = [log for log in run.ranks if log.rank not in run.helpers]
    basis = basis_of(training, run.strategy, balance=balance, most=MOST_STEPS)
    summary.straggler = explain(summary.straggler, basis, run.samples, equal=not balance)


def _add_settings(summary: Summary, run: RunFiles) -> None:
    settings, first = run.settings, next(iter(run.joined), None)
    summary.strategy, summary.workers = run.strategy, run.workers
    summary.system = run.launch.system
    summary.batch = run.plan.batch
    if settings:
        summary.seed, summary.precision = settings.seed, settings.precision
        summary.batch = settings.batch or summary.batch
        machines = any(machine.emulated for machine in run.plan.machines)
        summary.emulated = describe_emulation(settings, machines)
        summary.simulated = settings.virtual is not None
    planned = next((log.plans[-1] for log in run.ranks if log.plans), None)
    if planned:
        steps = (step.samples for log in run.ranks for step in log.steps)
        unknown = planned.batch == 1 and max(steps, default=1) > 1  # the script makes its batches
        summary.batch = None if unknown else planned.batch
    if first:
        summary.precision = first.precision
        summary.parameters = first.parameters or None
        summary.seed = first.seed if summary.seed is None else summary.seed
    summary.predicted = {"seconds": None, **run.plan.predicted}


def _add_machines(summary: Summary, run: RunFiles) -> None:
    training = set(range(run.plan.workers or 0)) - run.helpers  # Phalanx's servers come later
    workers = {m.name: sum(s.rank in training for s in m.slots) for m in run.plan.machines}
    if not workers:
        workers = dict(Counter(worker.machine for worker in run.launch.workers))
    workers = workers or dict(Counter(joined.machine for joined in run.joined))
    for name in run.samples:
        workers.setdefault(name, 0)
    trained: Counter[str] = Counter()
    for log in run.ranks:
        if log.joined:
            trained[log.joined.machine] += log.samples
    window = training_window(run.ranks)
    cores = {machine.name: machine.cores for machine in run.plan.machines}
    for name, count in workers.items():
        samples = run.samples.get(name, [])
        machine = MachineSummary(
            name=name,
            workers=count,
            resources=resources.use_of(samples),
            resources_training=resources.use_of(samples, window),
            totals=resources.totals_of(samples, cores.get(name, 0)),
            before=resources.before_of(samples),
            other_cpu_percent=resources.used_by_others(samples, cores.get(name, 0), *window),
            network_bytes=resources.network_bytes(samples),
            contribution=trained.get(name),
        )
        summary.machines.append(machine)
    summary.resources = resources.use_together(run.samples)
    summary.resources_training = resources.use_together(run.samples, window)


def training_window(ranks: Sequence[RankLog]) -> resources.Window:
    """Return when the first step of any worker began, and when the last ended."""
    steps = [step for log in ranks for step in (*log.steps[:1], *log.steps[-1:])]
    if not steps:
        return resources.NEVER
    return min(step.began for step in steps), max(step.ended for step in steps)


def _add_outcome(summary: Summary, run: RunFiles, generation: int) -> None:
    """Add epochs, losses, accuracies and times."""
    ranks = run.ranks
    starts = [log.plans[0].time for log in ranks if log.plans]
    starts = starts or [log.steps[0].began for log in ranks if log.steps]
    starts = starts or [log.joined.time for log in ranks if log.joined]
    began = min(starts, default=None)
    summary.history = hist.make_history(ranks, began)
    before = _add_earlier(summary, run, generation)
    _add_checkpoints(summary, ranks, None if began is None else began - before)
    summary.seconds = _elapsed(run)
    summary.phases = _phases(ranks)
    if not run.joined or (not run.launch.ours and not summary.history):
        return
    summary.epochs = sum(not row.get("earlier") for row in summary.history)
    samples = sum(log.samples for log in ranks)
    summary.samples_lost = sum(event.lost for log in ranks for event in log.settled)
    if summary.status == DONE and run.launch.ours:
        summary.unreported = [log.rank for log in ranks if log.joined and not log.finished]
    summary.samples = samples or sum(done.samples for log in ranks for done in log.epochs)
    train = summary.phases.train
    summary.samples_per_second = summary.samples / train if train else None
    names = {name for row in summary.history for name in row}
    for name in hist.MEASURES:
        setattr(summary, name, hist.last_value(summary.history, name))
    others = sorted(names - {*hist.MEASURES, *hist.OWN_FIELDS})
    summary.metrics = {name: hist.last_value(summary.history, name) for name in others}


def _add_earlier(summary: Summary, run: RunFiles, generation: int) -> float:
    """Put the epochs before the checkpoint first; return the training time until it."""
    if not run.settings or not run.settings.resume:
        return 0.0
    summary.resumes = run.launch.resumes or f"a checkpoint ({run.settings.resume})"
    source = source_of(run.paths, run.launch.resumes)
    parent = _parent(source, generation) if source else None
    seconds = None
    if source and parent:
        seconds = parent.checkpoint_seconds.get(source.checkpoint)
        if seconds is None:
            seconds = hist.last_value(parent.history, "seconds")
    seconds = seconds or 0.0
    summary.history = went_on(parent.history if parent else [], summary.history, seconds)
    return seconds


def _parent(source: ResumeSource, generation: int) -> Summary | None:
    written = read_summary(source.paths)
    if written is not None and written.status != RUNNING:
        return written
    if generation >= MOST_GENERATIONS:
        return None  # a cycle of runs that claim to resume each other
    return summarise_files(read_run(source.paths), generation=generation + 1)


def _add_checkpoints(summary: Summary, ranks: Sequence[RankLog], began: float | None) -> None:
    taken = [saved for log in ranks for saved in log.saved if _is_checkpoint(saved)]
    summary.checkpoints = len(taken)
    if not taken:
        return
    summary.checkpoint = CheckpointSummary(path=taken[-1].path, epoch=taken[-1].epoch)
    numbered = [(saved.path.rpartition("/")[2], saved.time) for saved in taken[-NEWEST:]]
    summary.checkpoint_seconds = {
        int(number): time - began
        for number, time in numbered
        if number.isdecimal() and began is not None
    }


def _is_checkpoint(saved: Saved) -> bool:
    return saved.path.startswith("checkpoints/")


def _elapsed(run: RunFiles) -> float | None:
    """Return the seconds from the start of the launch (or first worker) to the last event."""
    ends = [log.last_time for log in run.ranks if log.last_time is not None]
    if not ends or not run.joined:
        return None
    first = min(run.joined, key=lambda joined: joined.time)
    began = first.time
    if run.settings is not None and run.settings.virtual is not None:
        return max(ends) - began  # events have virtual times, the launch has not
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


def _add_extras(summary: Summary, run: RunFiles) -> None:
    ranks = run.ranks
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
    refused = sorted((r for log in ranks for r in log.refused), key=lambda event: event.time)
    summary.nonfinite_steps = len(refused)
    summary.nonfinite = [
        RefusedSummary(epoch=r.epoch, step=r.step, what=r.what) for r in refused[:FIRST]
    ]
    data = {(d.name, d.samples): d for log in reversed(ranks) for d in log.data}
    summary.data = [
        DataSummary(name=d.name, samples=d.samples, checksums=d.checksums)
        for _, d in sorted(data.items())
    ]
    summary.notes = list(run.joined[0].notes) if run.joined else []
    summary.notes += dict.fromkeys(noted.text for log in ranks for noted in log.noted)
    summary.notes += [
        f"worker {log.rank} wrote too many events: not all of them are counted here"
        for log in ranks
        if log.left_out
    ]
    summary.versions = run.launch.versions | (run.joined[0].versions if run.joined else {})
    saved = [saved for log in ranks for saved in log.saved if not _is_checkpoint(saved)]
    summary.files = sorted({one.path for one in saved})
