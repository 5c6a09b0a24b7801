"""Every worker's part, and the one the others waited for."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.report import words
from phalanx.report.load import Group, StudyData
from phalanx.report.sections import Grid, Section

HEAD = ("strategy", "worker", "machine", "device", "threads", "samples", "samples/s", "waiting",
        "mean staleness", "peak memory")  # fmt: skip


def section(study: StudyData) -> Section | None:
    """A row per worker of each strategy's typical run."""
    rows = tuple(row for group in study.groups for row in _rows(group))
    if not rows:
        return None
    return Section(
        "Workers",
        700,
        lines=tuple(line for group in study.groups for line in stragglers(group)),
        grids=(Grid(HEAD, rows),),
    )


def _rows(group: Group) -> Iterator[tuple[str, ...]]:
    for worker in group.shown.summary.per_worker:
        stale = worker.mean_staleness
        yield (
            group.label,
            str(worker.rank),
            worker.machine or words.UNKNOWN,
            worker.device or words.UNKNOWN,
            words.count(worker.threads),
            words.count(worker.samples),
            words.count(worker.samples_per_second),
            words.rough_share(worker.wait_share),
            words.UNKNOWN if stale is None else f"{stale:.2f}",
            words.size(worker.peak_memory_bytes),
        )


def stragglers(group: Group) -> Iterator[str]:
    """The true straggler, named, when there is a clear one."""
    late = group.shown.summary.straggler
    if late is None:
        return
    machines = {w.rank: w.machine for w in group.shown.summary.per_worker}
    several = len(set(machines.values())) > 1
    place = f" on {machines[late.rank]}" if several else ""
    yield (
        f"{group.label}: worker {late.rank}{place} had its gradient ready last in "
        f"{words.rough_share(late.share)} of {words.count(late.steps)} lockstep steps; "
        f"the others waited {words.seconds(late.seconds)} for it in all."
    )
