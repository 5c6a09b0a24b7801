"""Where the time went."""

from __future__ import annotations

from phalanx.report.load import StudyData
from phalanx.report.sections import Plot, Section


def section(study: StudyData) -> Section | None:
    """Input, compute, communicate, wait, update: seconds per worker."""
    if all(group.shown.summary.time.compute is None for group in study.groups):
        return None
    from phalanx.report.plots.figures import time_split

    caption = (
        "Only blue is learning. Red is waiting for other workers, yellow moves gradients and "
        "parameters, light blue waits for data; a short bar with much blue is what to look for."
    )
    plot = Plot("time-split", caption, time_split(study), wide=True)
    return Section("Where the time went", 400, plots=(plot,))
