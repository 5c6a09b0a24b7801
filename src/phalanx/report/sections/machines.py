"""Who did what: every worker's part, the one the others waited for, and what machines used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from phalanx.core import words
from phalanx.observe.machines.resources import Range
from phalanx.observe.summary.summary_fields import MachineSummary
from phalanx.report.findings import (
    balance_sentence,
    of_group,
    shares,
    straggler_sentence,
    worth_sentence,
)
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Plot, Section

WORKERS = ("strategy", "worker", "machine", "device", "threads", "steps", "samples", "share",
        "samples/s", "waiting", "mean staleness", "peak memory")  # fmt: skip
STRAGGLERS = ("strategy", "straggler", "its time per sample", "came last", "others waited",
              "of their time", "shares at the end, %", "changes of shares")  # fmt: skip
STRAGGLERS_NOTE = (
    "The straggler is the worker that comes last, not one that waits. Its time "
    "per sample is a multiple of the others', before shares changed. Asynchronous workers do not "
    "wait for it."
)
MOST_TOLD = 2
"""Strategies whose stragglers are described in sentences; of more there is a table."""


def workers(study: StudyData) -> Section | None:
    """A row per worker of each strategy's typical run."""
    rows = tuple(row for group in study.groups for row in _rows(group))
    if not rows:
        return None
    if len(study.groups) > MOST_TOLD:
        stragglers = tuple(row for group in study.groups for row in _straggler(group))
        found = (Grid(STRAGGLERS, stragglers, STRAGGLERS_NOTE),) if stragglers else ()
        return Section("Workers", 700, grids=(*found, Grid(WORKERS, rows)))
    told = tuple(line for group in study.groups for line in _told_of(group, study))
    return Section("Workers", 700, lines=told, grids=(Grid(WORKERS, rows),))


def _straggler(group: RunGroup) -> Iterator[tuple[str, ...]]:
    summary = group.shown.summary
    late, balance = summary.straggler, summary.balance
    if late is None:
        return
    nobody = late.waiting == "nobody"
    yield (
        group.label,
        f"worker {late.rank}",
        words.UNKNOWN if late.slower is None else f"× {late.slower:.1f}",
        words.rough_share(late.share) if late.steps else words.UNKNOWN,
        "no one" if nobody else words.seconds(late.seconds),
        words.UNKNOWN if nobody else words.rough_share(late.cost),
        shares(summary.shares) if summary.shares else "equal",
        words.count(balance.changes if balance else 0),
    )


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
    """The true straggler, named, and what balance did about it."""
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
    """Over time, and as figures."""
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
    """One row per machine (and strategy, of several); columns without any value are left out."""
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
