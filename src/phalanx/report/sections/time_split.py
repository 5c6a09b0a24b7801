"""Where the time went."""

from __future__ import annotations

from phalanx.core import words
from phalanx.observe.summary.summary_fields import Phases
from phalanx.report.load import StudyData
from phalanx.report.sections import Grid, Plot, Section

PHASES = Phases.__struct_fields__
PHASES_NOTE = (
    "Of the worker that took longest. start: Python, torch and joining the other workers; read: "
    "phalanx.data.load; prepare: what else the script does before it trains, mostly to its data."
)


def section(study: StudyData) -> Section | None:
    """The phases of each run; input, compute, communicate, wait, update of its steps."""
    grids = (Grid(("strategy", *PHASES), rows, PHASES_NOTE),) if (rows := _rows(study)) else ()
    plots: tuple[Plot, ...] = ()
    if any(group.shown.summary.time.compute is not None for group in study.groups):
        from phalanx.report.plots.figures import time_split

        caption = (
            "Only blue is learning. Red is waiting for other workers, yellow moves gradients and "
            "parameters, light blue waits for data; the best bar is short and mostly blue."
        )
        plots = (Plot("time-split", caption, time_split(study), wide=True),)
    if not (plots or grids):
        return None
    return Section("Where the time went", 400, plots=plots, grids=grids)


def _rows(study: StudyData) -> tuple[tuple[str, ...], ...]:
    """A row for each strategy's typical run, where a phase is known."""
    found = [(group.label, group.shown.summary.phases) for group in study.groups]
    return tuple(
        (label, *(words.seconds(getattr(phases, name)) for name in PHASES))
        for label, phases in found
        if any(getattr(phases, name) is not None for name in PHASES)
    )
