"""The timeline: what each worker did, part by part.

Seen from near it shows real steps. Seen from far it is cut into short times, in each of which the
parts of all its steps follow each other once.
"""

from __future__ import annotations

import numpy as np

from phalanx.observe.rollups.rows import PARTS, RowColumn, Rows
from phalanx.watch.feed.chart_types import TimeSpan
from phalanx.watch.feed.charts import Numbers, sums_between

KINDS = ("input", "compute", "send", "wait", "reduce", "update", "settle", "other", "hidden")
_ORDER = [RowColumn[kind.upper()] for kind in KINDS[:-1]]
_VISIBLE = 0.004
"""The least share of a bin that is shown."""


def spans_of_bins(rows: Rows, edges: Numbers, began: float) -> list[TimeSpan]:
    """Return the parts of each bin in their order; ``began`` becomes time 0."""
    parts = sums_between(rows, edges)[:, _ORDER]
    widths = np.diff(edges)
    starts = edges[:-1]
    if len(rows):  # a worker that joined later begins in the middle of a bin
        starts = np.clip(rows[0, RowColumn.BEGAN], starts, edges[1:])
    ends = starts[:, None] + np.cumsum(parts, axis=1) - began
    shown = parts > _VISIBLE * widths[:, None]
    found = []
    for bin_, kind in np.argwhere(shown).tolist():
        end = float(ends[bin_, kind])
        found.append(TimeSpan(end - float(parts[bin_, kind]), end, KINDS[kind]))
    return found


def spans_of_steps(rows: Rows, first: float, last: float, began: float) -> list[TimeSpan]:
    """Return the parts of each step between two moments; ``began`` becomes time 0."""
    inside = (rows[:, RowColumn.ENDED] > first) & (rows[:, RowColumn.BEGAN] < last)
    found: list[TimeSpan] = []
    before: float | None = None
    for row in rows[inside]:
        start = float(row[RowColumn.BEGAN]) - began
        if before is not None and not row[RowColumn.OPENS] and start - before > 0:
            found.append(TimeSpan(before, start, "other"))
        number = int(row[RowColumn.NUMBER]) if row[RowColumn.STEPS] else None
        ready = start + float(row[RowColumn.INPUT] + row[RowColumn.COMPUTE])
        if row[RowColumn.HIDDEN] > 0:
            found.append(TimeSpan(ready - float(row[RowColumn.HIDDEN]), ready, "hidden", number))
        for kind, seconds in zip(KINDS, row[PARTS].tolist(), strict=False):
            if seconds > 0:
                found.append(TimeSpan(start, start + seconds, kind, number))
            start += seconds
        before = start
    return found
