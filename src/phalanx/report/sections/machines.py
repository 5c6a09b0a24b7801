"""Every worker's part of the work, the straggler, and the use of the machines."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator

from phalanx.core import words
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.resources import Range
from phalanx.observe.summary.summary import training_window
from phalanx.observe.summary.summary_fields import MachineSummary, Summary
from phalanx.report.findings import (
    balance_sentence,
    of_group,
    straggler_sentence,
    worth_sentence,
)
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Plot, Section, narrow
from phalanx.report.tables import TableCell

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


MachineCell = Callable[[MachineSummary], str]
CAPTION = (
    "Once a second from the start of the launch, other programs included; shaded, or a thick line "
    "at the bottom: the training. A CPU that is not fully used while workers wait shows what "
    "waiting costs. Of the cluster, percentages are means over the machines, and all else are sums."
)
HEAT = "The same CPU, machine by machine: the stronger, the more was used. Dashed: the training."
NOTE = "The mean, and below it the least and the most; training: from the first step to the last."
KINDS = (
    ("over the whole run", "resources", ""),
    ("in training alone", "resources_training", NOTE),
)


def machines(study: StudyData) -> Section | None:
    """Show the use of the machines over time, and as figures."""
    if not any(samples for g in study.groups for samples in g.shown.files.samples.values()):
        return None
    from phalanx.report.plots.machine_plot import (
        MOST_MACHINES,
        heat_strips,
        machine_names,
        machine_use,
    )

    plots = [Plot("machines", CAPTION, machine_use(study), wide=True)]
    if len(machine_names(study)) > MOST_MACHINES:
        plots.append(Plot("machines-heat", HEAT, heat_strips(study), wide=True))
    lines = (of_group(group, study, worth_sentence(group.shown.summary)) for group in study.groups)
    told = tuple(line for line in lines if line)
    grids = (_work(study), *(_grid(study, *kind) for kind in KINDS))
    return Section(
        "Machines",
        800,
        lines=told,
        plots=tuple(plots),
        grids=tuple(narrow(grid) for grid in grids if len(grid.head) > 1),
        files=(("machines.csv", _readings(study)),),
    )


def _rows_of(study: StudyData) -> Iterator[tuple[str, Summary | MachineSummary]]:
    """Yield clusters of several machines, and machines, with the names of their rows."""
    for group in study.groups:
        summary, prefix = group.shown.summary, f"{group.label} · " if len(study.groups) > 1 else ""
        if len(summary.machines) > 1:
            yield f"{prefix}cluster", summary
        yield from ((prefix + machine.name, machine) for machine in summary.machines)


def _work(study: StudyData) -> Grid:
    """Make a table of what the machines did in all, and what used them before."""
    rows = [(name, m) for name, m in _rows_of(study) if isinstance(m, MachineSummary)]
    columns = [(n, cell) for n, cell in IN_ALL if any(cell(m) != words.UNKNOWN for _, m in rows)]
    head = ("in all", *(name for name, _ in columns))
    return Grid(head, tuple((name, *(cell(m) for _, cell in columns)) for name, m in rows))


IN_ALL: tuple[tuple[str, MachineCell], ...] = (
    ("workers", lambda m: str(m.workers)),
    ("samples", lambda m: words.count(m.contribution)),
    ("CPU time, user", lambda m: words.seconds(m.totals.cpu_user_seconds)),
    ("CPU time, system", lambda m: words.seconds(m.totals.cpu_system_seconds)),
    ("received", lambda m: words.size(m.totals.network_received_bytes)),
    ("sent", lambda m: words.size(m.totals.network_sent_bytes)),
    ("load before", lambda m: words.ratio(m.before.load)),
    ("memory before", lambda m: words.size(m.before.memory_bytes)),
    (
        "CPU of others",
        lambda m: words.rough_share(m.other_cpu_percent and m.other_cpu_percent / 100),
    ),
)


def _grid(study: StudyData, title: str, kind: str, note: str) -> Grid:
    """Make a row per cluster and machine; figures that were zero at all times are left out."""
    rows = [(name, getattr(one, kind)) for name, one in _rows_of(study)]
    columns = [c for c in COLUMNS if any(getattr(use, c[1]).max for _, use in rows)]
    cells: Iterator[tuple[str | TableCell, ...]] = (
        (name, *(_cell(getattr(use, f), write) for _, f, write in columns)) for name, use in rows
    )
    return Grid((title, *(name for name, _, _ in columns)), tuple(cells), note)


def _cell(use: Range, write: Callable[[float], str]) -> TableCell:
    if use.avg is None or use.min is None or use.max is None:
        return TableCell(words.UNKNOWN)
    return TableCell(write(use.avg), words.span(write(use.min), write(use.max)))


def _pace(value: float) -> str:
    return f"{words.size(value)}/s"


def _count(value: float) -> str:
    return f"{words.count(value) if value >= 9.95 else f'{value:.2g}'}/s"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("CPU", "cpu_percent", words.percent),
    ("CPU user", "cpu_user", words.percent),
    ("CPU system", "cpu_system", words.percent),
    ("CPU wait", "cpu_wait", words.percent),
    ("CPU steal", "cpu_steal", words.percent),
    ("CPU idle", "cpu_idle", words.percent),
    ("throttled", "throttled_percent", words.percent),
    ("memory", "memory_bytes", words.size),
    ("cached", "memory_cached", words.size),
    ("swap", "swap_bytes", words.size),
    ("swap in and out", "swap_bytes_per_second", _pace),
    ("major faults", "major_faults_per_second", _count),
    ("network in", "network_received_per_second", _pace),
    ("network out", "network_sent_per_second", _pace),
    ("disk read", "disk_read_per_second", _pace),
    ("disk written", "disk_written_per_second", _pace),
    ("GPU", "gpu_percent", words.percent),
    ("GPU memory", "gpu_memory_bytes", words.size),
    ("power", "watts", lambda value: f"{value:.0f} W"),
    ("pressure CPU", "pressure_cpu", words.percent),
    ("pressure memory", "pressure_memory", words.percent),
    ("pressure disk", "pressure_io", words.percent),
    ("TCP segments out", "segments_per_second", _count),
    ("TCP sent again", "retransmits_per_second", _count),
)


def _readings(study: StudyData) -> str:
    """Write every reading of every run as CSV, a row per reading of a machine."""
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    table.writerow(("run", "strategy", "machine", "seconds", "training", *READINGS))
    for group in study.groups:
        for run in group.runs:
            samples = run.files.samples
            began = min((found[0].time for found in samples.values() if found), default=0.0)
            first, last = training_window(run.files.ranks)
            for machine, found in samples.items():
                for one in found:
                    when = (f"{one.time - began:.3f}", int(first < one.time <= last))
                    figures = (getattr(one, field) for field in READINGS)
                    table.writerow((run.paths.id, group.label, machine, *when, *figures))
    return rows.getvalue()


READINGS = tuple(f for f in MachineSample.__struct_fields__ if f not in ("time", "cpu_source"))
