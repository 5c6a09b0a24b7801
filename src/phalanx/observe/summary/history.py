"""One row per epoch: the ranks' figures combined, and all other logged figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from phalanx.core.run_folder.run_paths import RunPaths, beside
from phalanx.observe.events.event_types import EpochDone, SamplesSettled
from phalanx.observe.events.timeline import RankLog

Row = dict[str, float | int | None]
MOST_GENERATIONS = 32
MEASURES = (
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "validation_loss",
    "validation_accuracy",
)
OWN_FIELDS = (
    "epoch", "seconds", "samples", "samples_per_second", "rate", "gradient_norm", "earlier",
)  # fmt: skip


def make_history(ranks: Sequence[RankLog], began: float | None) -> list[Row]:
    """Return the rows of all epochs that any rank has finished, in order."""
    by_epoch: dict[int, list[EpochDone]] = {}
    for log in ranks:
        for done in log.epochs:
            by_epoch.setdefault(done.epoch, []).append(done)
    for event in (log.gone for log in ranks if log.gone):
        parts = by_epoch.setdefault(event.epoch, [])
        if all(part.rank != event.worker for part in parts):  # lost before the epoch's end
            parts.append(_part_of(event))
    logged = logged_values(ranks)
    return [
        epoch_row(parts, logged.get(epoch, {}), began) for epoch, parts in sorted(by_epoch.items())
    ]


def _part_of(event: SamplesSettled) -> EpochDone:
    """Return a lost worker's part of its last epoch."""
    return EpochDone(
        time=event.time,
        rank=event.worker,
        epoch=event.epoch,
        seconds=0.0,
        samples=event.of_epoch,
        train_loss=None,
        train_accuracy=None,
        rate=None,
    )


def logged_values(ranks: Sequence[RankLog]) -> dict[int, dict[str, float | None]]:
    """Return the figures logged in each epoch; where ranks differ, the first rank's count."""
    values: dict[int, dict[str, float | None]] = {}
    for log in reversed(ranks):
        for event in log.logged:
            values.setdefault(event.epoch, {}).update(event.values)
    return values


def last_value(history: Sequence[Row], name: str) -> float | None:
    """Return the newest known value of ``name``."""
    return next((row[name] for row in reversed(history) if row.get(name) is not None), None)


def epoch_row(
    parts: Sequence[EpochDone], logged: Mapping[str, float | None], began: float | None
) -> Row:
    """Combine the ranks' ``parts`` of one epoch with what was ``logged`` in it."""
    samples = sum(part.samples for part in parts)
    longest = max(part.seconds for part in parts)
    ended = max(part.time for part in parts)
    row: Row = {
        "epoch": parts[0].epoch,
        "seconds": None if began is None else ended - began,
        "samples": samples,
        "samples_per_second": samples / longest if longest > 0 else None,
        **dict.fromkeys(MEASURES),
        "rate": next((part.rate for part in parts if part.rate is not None), None),
        "gradient_norm": _mean((part.gradient_norm, part.samples) for part in parts),
    }
    row["train_loss"] = _mean((part.train_loss, part.samples) for part in parts)
    row["train_accuracy"] = _mean((part.train_accuracy, part.samples) for part in parts)
    for name, value in logged.items():
        fills = name not in OWN_FIELDS or name == "gradient_norm"
        if fills and row.get(name) is None:
            row[name] = value
    return row


def _mean(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean, weighted by samples, of the known values."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight > 0]
    weight = sum(weight for _, weight in known)
    return sum(value * part for value, part in known) / weight if weight else None


@dataclass(frozen=True)
class ResumeSource:
    """A checkpoint of another run."""

    paths: RunPaths
    checkpoint: int


def source_of(paths: RunPaths, resumes: str | None) -> ResumeSource | None:
    """Return the checkpoint that a run resumed from, if its run's folder is still beside it."""
    found = re.fullmatch(r"(.+), checkpoint (\d+)", resumes or "")
    parent = beside(paths, found[1]) if found else None
    if not found or parent is None:
        return None
    if not parent.folder.is_dir() or parent.folder == paths.folder:
        return None
    return ResumeSource(parent, int(found[2]))


def went_on(earlier: Sequence[Row], own: Sequence[Row], seconds: float) -> list[Row]:
    """Join the histories before and after a checkpoint that was written after ``seconds``.

    Rows have ``earlier`` if trained before it, even if the epoch was evaluated only after it.
    """
    trained = [row for row in own if row["samples"]]
    first = min((row["epoch"] or 0 for row in trained), default=None)
    rows: dict[int, Row] = {}
    for row in earlier:
        if first is None or (row["epoch"] or 0) < first:
            rows[int(row["epoch"] or 0)] = {**row, "earlier": 1}
    for row in own:
        epoch = int(row["epoch"] or 0)
        if row["samples"]:
            ended = row["seconds"]
            rows[epoch] = {**row, "seconds": None if ended is None else ended + seconds}
        else:
            known = rows.get(epoch, {"seconds": seconds, "samples_per_second": None, "earlier": 1})
            rows[epoch] = {**row, **{n: v for n, v in known.items() if v is not None}}
            rows[epoch]["samples_per_second"] = known.get("samples_per_second")
    return [rows[epoch] for epoch in sorted(rows)]
