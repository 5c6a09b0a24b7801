"""What a terminal and a notebook say of a run: the same words and the same columns."""

from __future__ import annotations

from phalanx.core.words import UNKNOWN, clock, count, loss, rough_share, size
from phalanx.observe.summary.run_status import RUNNING
from phalanx.watch.feed.cluster_view import MachineNow, Reading
from phalanx.watch.feed.run_view import Mark, RunView, WorkerRow

WORKERS = ("worker", "samples/s", "share", "waiting", "loss", "state")
MACHINES = ("machine", "cpu", "memory", "received/s", "sent/s")


def title_words(view: RunView) -> str:
    """Return how it trains, and where."""
    where = f"{len(view.workers)} worker{'s' * (len(view.workers) != 1)}"
    if len(view.machines) > 1:
        where += f" on {len(view.machines)} machines"
    return f"{view.strategy or view.system}  {where}"


def progress_words(view: RunView) -> str:
    """Return how far it is, how fast it goes, and how long it still takes."""
    told = view.progress
    rates = [row.samples_per_second for row in view.workers if row.samples_per_second is not None]
    took = clock(view.seconds)
    parts = [
        rough_share(told.share) if told.share is not None else "",
        f"epoch {told.epoch}{f'/{told.epochs}' if told.epochs else ''}",
        f"{count(sum(rates))} samples/s" if rates else "",
        f"{took} so far" if view.status == RUNNING else f"took {took}",
        f"{clock(told.left_seconds)} to go" if told.left_seconds else "",
        f"reading: {rough_share(view.building)}" if view.building is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def mark_words(mark: Mark) -> str:
    return f"{'-' if mark.time < 0 else ''}{clock(abs(mark.time))}  {mark.text}"


def worker_cells(row: WorkerRow) -> list[str]:
    return [
        " ".join(filter(None, (str(row.rank), row.machine, row.device))),
        count(row.samples_per_second),
        rough_share(row.share),
        rough_share(row.waiting),
        loss(row.loss),
        row.state,
    ]


def machine_cells(row: MachineNow) -> list[str]:
    now = row.now or Reading()
    state = f" ({row.state})" if row.state in ("lost", "silent", "unreachable") else ""
    memory = size(now.memory_bytes)
    if now.memory_percent is not None:
        memory = f"{now.memory_percent:.0f} %"
    busy = UNKNOWN if now.cpu is None else f"{now.cpu:.0f} %"
    return [row.name + state, busy, memory, size(now.received), size(now.sent)]
