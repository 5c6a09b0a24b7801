"""The course of the training: its phases, its switches, a few steps, and staleness."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.core import words
from phalanx.observe.summary.summary_fields import Phases
from phalanx.report.findings import of_group, shown_switches, switch_sentence
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Plot, Section
from phalanx.report.windows import cut_window, usual_span

PHASES = Phases.__struct_fields__
PHASES_NOTE = (
    "Of the worker that took longest. start: Python, torch and joining the other workers; read: "
    "phalanx.data.load, or Keras' load_data; prepare: what else the script does before it trains, "
    "mostly to its data; checkpoint: the training stood still for them."
)


def phases(study: StudyData) -> Section | None:
    """Show the phases of each run, and how the time of its steps was spent."""
    grids = (Grid(("strategy", *PHASES), rows, PHASES_NOTE),) if (rows := _phases(study)) else ()
    plots: tuple[Plot, ...] = ()
    if any(group.shown.summary.time.compute is not None for group in study.groups):
        from phalanx.report.plots.figures import time_split

        caption = (
            "Only blue is learning. Red is waiting for other workers, yellow moves gradients and "
            "parameters, light blue waits for data; the best bar is short and mostly blue."
        )
        if any(group.shown.summary.time.hidden for group in study.groups):
            caption += " Hatched: gradients that went to other machines while others were computed."
        plots = (Plot("time-split", caption, time_split(study), wide=True),)
    if not (plots or grids):
        return None
    return Section("Where the time went", 400, plots=plots, grids=grids)


def _phases(study: StudyData) -> tuple[tuple[str, ...], ...]:
    """Return a row for each strategy's typical run of which a phase is known."""
    found = [(group.label, group.shown.summary.phases) for group in study.groups]
    return tuple(
        (label, *(words.seconds(getattr(phases, name)) for name in PHASES))
        for label, phases in found
        if any(getattr(phases, name) is not None for name in PHASES)
    )


SWITCHES = ("strategy", "switch", "at epoch", "from", "to", "pause")


def switches(study: StudyData) -> Section | None:
    """Show when the strategy changed: the first and last switches of each typical run."""
    groups = [group for group in study.groups if group.shown.summary.switches]
    if not groups:
        return None
    rows = tuple(row for group in groups for row in _switches(group))
    note = "Epochs count from 0: 1.5 is halfway through the second. A pause is from the last "
    note += "worker's arrival to the first new step."
    lines = tuple(of_group(group, study, switch_sentence(group.shown.summary)) for group in groups)
    return Section("Switches", 450, lines=lines, grids=(Grid(SWITCHES, rows, note),))


def _switches(group: RunGroup) -> Iterator[tuple[str, ...]]:
    switches = group.shown.summary.switches
    shown, hidden = shown_switches(switches)
    for index, switch in enumerate(shown):
        if hidden and index == len(shown) // 2:
            yield (group.label, f"{hidden} more", "", "", "", "")
        number = index + 1 if index < len(shown) / 2 else len(switches) - len(shown) + index + 1
        yield (
            group.label,
            str(number),
            f"{switch.at_epoch:.2f}",
            switch.before,
            switch.after,
            words.seconds(switch.pause_seconds),
        )


MOST_WORKERS = 16


def timeline(study: StudyData) -> Section | None:
    """Show the same span of time for every strategy, so that more steps in it mean faster."""
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


def staleness(study: StudyData) -> Section | None:
    """Show the staleness of strategies whose workers do not step together."""
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
