"""How stale the gradients were."""

from __future__ import annotations

from phalanx.report.load import StudyData
from phalanx.report.sections import Plot, Section


def section(study: StudyData) -> Section | None:
    """Only strategies that do not step together have any staleness to show."""
    groups = [group for group in study.groups if any(group.shown.summary.staleness)]
    if not groups:
        return None
    from phalanx.report.plots.figures import staleness_bars

    caption = (
        "Asynchronous workers compute on parameters that others change meanwhile. Around "
        "“workers − 1” is normal; a long tail to the right costs accuracy."
    )
    plot = Plot("staleness", caption, staleness_bars(study, groups), wide=True)
    return Section("Staleness", 600, plots=(plot,))
