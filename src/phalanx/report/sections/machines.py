"""Every worker's part of the work, the straggler, and the use of the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from phalanx.core import words
from phalanx.observe.machines.resources import Range
from phalanx.observe.summary.summary_fields import MachineSummary
from phalanx.report.findings import (
    balance_sentence,
    of_group,
    straggler_sentence,
    worth_sentence,
)
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Plot, Section

WORKERS = ("strategy", "worker", "machine", "device", "threads", "steps", "samples", "share",
        "samples/s", "waiting", "mean staleness", "peak memory")  # fmt: skip

MOST_WAITS = 8
LEAST_WAIT = 0.01


def workers(study: StudyData) -> Section | None:
    """Show a row per worker of each strategy's typical run."""
    rows = tuple(row for group in study.groups for row in _rows(group))
    if not rows:
        return None
    told = tuple(line for group in study.groups for line in _told_of(group, study))
    return Section("Workers", 700, lines=told, grids=(Grid(WORKERS, rows), *_waits(study)))


def _waits(study: StudyData) -> Iterator[Grid]:
    """Yield a table of who waited for whom, the longest waits first, if any worker waited."""
    rows = [
        (group.label, wait.waiting, wait.late, words.seconds(wait.seconds))
        for group in study.groups
        for wait in group.shown.summary.waits[:MOST_WAITS]
        if wait.seconds >= LEAST_WAIT * (group.shown.summary.phases.train or 0.0)
    ]
    if rows:
        head = ("strategy", "who waited", "for", "together")
        yield Grid(head, tuple(rows), "Waits of at least 1 % of the training time.")


def _rows(group: RunGroup) -> Iterator[tuple[str, ...]]:
    for worker in group.shown.summary.per_worker:
        stale = worker.mean_staleness
        yield (
            group.label,
            str(worker.rank),
            worker.machine or words.UNKNOWN,
            worker.device or words.UNKNOWN,
            words.count(worker.threads),
            words.count(worker.steps),
            words.count(worker.samples),
            words.rough_share(worker.share),
            words.count(worker.samples_per_second),
            words.rough_share(worker.wait_share),
            words.UNKNOWN if stale is None else f"{stale:.2f}",
            words.size(worker.peak_memory_bytes),
        )


def _told_of(group: RunGroup, study: StudyData) -> Iterator[str]:
    """Yield the sentences about the straggler and about balance, if any."""
    summary = group.shown.summary
    for sentence in (straggler_sentence(summary), balance_sentence(summary)):
        if sentence:
            yield of_group(group, study, sentence)


CAPTION = (
    "The whole machine, all its cores and other programs included, once a second from the start "
    "of the launch. A CPU that is not fully used while workers wait shows what waiting costs."
)
MachineCell = Callable[[MachineSummary], str]


def machines(study: StudyData) -> Section | None:
    """Show the use of the machines over time, and as figures."""
    if not any(samples for g in study.groups for samples in g.shown.files.samples.values()):
        return None
    from phalanx.report.plots.machine_plot import MOST_MACHINES, machine_names, machine_use

    count = len(machine_names(study))
    shown = f" The first {MOST_MACHINES} of {count} machines." if count > MOST_MACHINES else ""
    plot = Plot("machines", CAPTION + shown, machine_use(study), wide=True)
    lines = (of_group(group, study, worth_sentence(group.shown.summary)) for group in study.groups)
    told = tuple(line for line in lines if line)
    return Section("Machines", 800, lines=told, plots=(plot,), grids=(_grid(study),))


def _grid(study: StudyData) -> Grid:
    """Make a row per machine (and strategy, if several); columns without any value are left out."""
    several = len(study.groups) > 1
    rows = [(g.label, m) for g in study.groups for m in g.shown.summary.machines]
    columns = [c for c in COLUMNS if any(c[1](m) != words.UNKNOWN for _, m in rows)]
    head = (*(("strategy",) if several else ()), "machine", *(name for name, _ in columns))
    return Grid(
        head,
        tuple(
            (*((label,) if several else ()), m.name, *(cell(m) for _, cell in columns))
            for label, m in rows
        ),
    )


def _of(name: str, how: str, write: Callable[[float], str]) -> MachineCell:
    def cell(machine: MachineSummary) -> str:
        use: Range = getattr(machine.resources, name)
        value: float | None = getattr(use, how)
        return words.UNKNOWN if value is None else write(value)

    return cell


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _pace(value: float) -> str:
    return f"{words.size(value)}/s"


def _columns() -> Iterator[tuple[str, MachineCell]]:
    yield "workers", lambda m: str(m.workers)
    yield "samples", lambda m: words.count(m.contribution)
    yield "CPU mean", _of("cpu_percent", "avg", _percent)
    yield "CPU max", _of("cpu_percent", "max", _percent)
    yield "memory max", _of("memory_bytes", "max", words.size)
    yield "network mean", _of("network_bytes_per_second", "avg", _pace)
    yield "network max", _of("network_bytes_per_second", "max", _pace)
    yield "network in all", lambda m: words.size(m.network_bytes)
    yield "disk mean", _of("disk_bytes_per_second", "avg", _pace)
    yield "GPU mean", _of("gpu_percent", "avg", _percent)
    yield "GPU memory max", _of("gpu_memory_bytes", "max", words.size)
    yield "power mean", _of("watts", "avg", lambda value: f"{value:.0f} W")


COLUMNS = tuple(_columns())
