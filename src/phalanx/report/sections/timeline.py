"""A few typical steps of every worker."""

from __future__ import annotations

from phalanx.report.load import StudyData
from phalanx.report.sections import Plot, Section
from phalanx.report.windows import cut_window, usual_span

MOST_WORKERS = 16


def section(study: StudyData) -> Section | None:
    """The same span of time for every strategy, so that more steps in it means faster."""
    groups = [g for g in study.groups if any(log.steps for log in g.shown.files.ranks)]
    if not groups:
        return None
    from phalanx.report.plots.figures import step_timelines

    logs = {g.label: g.shown.files.ranks[:MOST_WORKERS] for g in groups}
    spans = [span for ranks in logs.values() if (span := usual_span(ranks))]
    if not spans or min(spans) <= 0:
        return None
    span = min(max(spans), 8 * min(spans))
    windows = [(g, cut_window([log for log in logs[g.label] if log.steps], span)) for g in groups]
    caption = (
        "The same span of time in the middle of each training; a tick marks a new step. "
        "Steps that begin together are lockstep: the worker without red is the one that the others "
        "wait for."
    )
    if any(log.rounds for ranks in logs.values() for log in ranks):
        caption += " Independent workers synchronise in the middle, after several ticks."
    if any(window.switch is not None for _, window in windows):
        caption += " The dashed line is the moment of the switch."
    plot = Plot("timeline", caption, step_timelines(windows, span), wide=True)
    return Section("A few steps, worker by worker", 500, plots=(plot,))
