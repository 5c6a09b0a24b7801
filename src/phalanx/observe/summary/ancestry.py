"""The run that another one goes on from, and one history of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.run_folder.run_paths import RunPaths, beside
from phalanx.observe.summary.history import Row

MOST_GENERATIONS = 32


@dataclass(frozen=True)
class ResumeSource:
    """A checkpoint of another run."""

    paths: RunPaths
    checkpoint: int


def source_of(paths: RunPaths, resumes: str | None) -> ResumeSource | None:
    """Where the run in ``paths`` goes on from, if that folder still lies beside it."""
    found = re.fullmatch(r"(.+), checkpoint (\d+)", resumes or "")
    parent = beside(paths, found[1]) if found else None
    if not found or parent is None:
        return None
    if not parent.folder.is_dir() or parent.folder == paths.folder:
        return None
    return ResumeSource(parent, int(found[2]))


def went_on(earlier: Sequence[Row], own: Sequence[Row], seconds: float) -> list[Row]:
    """One history; rows from before the checkpoint, taken after ``seconds``, say ``earlier``.

    An epoch that was trained before the checkpoint and only evaluated after it is one of them.
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
