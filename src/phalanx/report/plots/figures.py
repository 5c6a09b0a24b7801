"""The figures of a report, each a function of the runs, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from phalanx.observe.operators.operator_names import GROUPS
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.plots.drawing import (
    BASE,
    INK,
    PALETTE,
    colours,
    house_style,
    legend_above,
    legend_columns,
    legend_height,
    new_figure,
)
from phalanx.report.windows import TimelineWindow

TIME_PARTS = ("input", "compute", "communicate", "wait", "update")
TIME_COLOURS = {
    "input": "#9ec5f4",
    "compute": "#4269d0",
    "communicate": "#f2b632",
    "wait": "#ee6a5b",
    "update": "#3ca951",
}
HIDDEN: Any = {
    "linewidth": 0,
    "facecolor": "none",
    "edgecolor": TIME_COLOURS["communicate"],
    "hatch": "////",
}
"""How communication is drawn that took no time of its own, because it ran beside computing."""
GROUP_COLOURS = dict(zip((*GROUPS, "Python"), (*PALETTE, "#f2b632", "#9ec5f4", BASE), strict=True))
HALF = (5.4, 3.5)
WIDE = 10.6
LEGEND_ROOM = 5.0


def curves(
    study: StudyData, x: str, measures: Sequence[str], *, shares: bool, x_label: str
) -> Figure:
    """``measures`` over ``x`` of the history: the first solid, others dashed, repeats faint."""
    labels = [group.label for group in study.groups]
    colour = colours(labels)
    with house_style():
        figure, axes = new_figure(HALF[0], HALF[1] + legend_height(labels, LEGEND_ROOM))
        for group in study.groups:
            for run in group.runs:
                shown = run is group.shown
                for index, measure in enumerate(measures):
                    points = _points(run.summary.history, x, measure)
                    label = group.label if shown and not index else None
                    style = ("-", "--")[min(index, 1)]
                    strength = (1.0 if index == 0 else 0.75) if shown else 0.25
                    axes.plot(
                        *points, style, label=label, color=colour[group.label], alpha=strength,
                        marker="o" if len(points[0]) < 3 else None, markersize=4,
                    )  # fmt: skip
        axes.set_xlabel(x_label)
        axes.set_ylabel(" and ".join(dict.fromkeys(name.split("_")[-1] for name in measures)))
        if x == "epoch":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            axes.set_xlim(left=0)
        if shares:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %", decimals=None))
            _zoom(axes, [y for line in axes.lines for y in line.get_ydata()])
        for group in study.groups:
            _mark_checkpoint(axes, group.shown.summary.history, x, colour[group.label])
        legend_above(axes, legend_columns(labels, LEGEND_ROOM))
    return figure


def _mark_checkpoint(axes: Axes, history: Sequence[dict[str, Any]], x: str, colour: str) -> None:
    """Draw a vertical line where a resumed run went on; points before it are the earlier run's."""
    earlier = [row for row in history if row.get("earlier") and row.get(x) is not None]
    if earlier:
        place = earlier[-1][x] + (1 if x == "epoch" else 0)
        axes.axvline(place, color=colour, linewidth=1.1, linestyle=(0, (2, 2)), alpha=0.8)


def _points(history: Sequence[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    # Epochs are counted from 0 in the files and from 1 on paper: "after epoch 1".
    shift = 1 if x == "epoch" else 0
    known = [row for row in history if row.get(x) is not None and row.get(y) is not None]
    return [row[x] + shift for row in known], [row[y] for row in known]


def _zoom(axes: Axes, values: Sequence[float]) -> None:
    """Leave out the steep beginning, so that the end, where curves differ, can be read."""
    ordered = sorted(values)
    if len(ordered) < 8:
        return
    low, high = ordered[len(ordered) // 10], ordered[-1]
    room = max(high - low, 0.005) * 0.08
    axes.set_ylim(max(0.0, low - room), min(1.0 + room, high + room))


def time_split(study: StudyData) -> Figure:
    """Stacked bars: seconds per worker by what they were spent on."""
    shown = {group.label: group.shown.summary.time for group in study.groups}
    times = [(label, time) for label, time in shown.items() if time.compute is not None]
    bars = {
        label: {part: getattr(time, part) or 0.0 for part in TIME_PARTS} for label, time in times
    }
    hidden = {
        label: ((time.input or 0.0) + (time.compute or 0.0) - time.hidden, time.hidden)
        for label, time in times
        if time.hidden
    }
    return stacked_bars(bars, TIME_COLOURS, "seconds per worker, summed over all steps", hidden)


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]],
    colour: Mapping[str, str],
    x_label: str,
    hidden: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """One bar for each label, of the parts that have a colour; ``hidden``: where what ran beside
    them begins, and how long it is."""
    parts = [part for part in colour if any(part in bar for bar in bars.values())]
    shown = [*parts, *(["hidden"] if hidden else [])]
    with house_style():
        figure, axes = new_figure(WIDE, 0.9 + legend_height(shown, WIDE) + 0.5 * len(bars))
        left = [0.0] * len(bars)
        for part in parts:
            widths = [bar.get(part, 0.0) for bar in bars.values()]
            axes.barh(list(bars), widths, left=left, color=colour[part], label=part, height=0.62)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        if hidden:
            left, widths = (list(each) for each in zip(*hidden.values(), strict=True))
            axes.barh(list(hidden), widths, left=left, height=0.62, label="hidden", **HIDDEN)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
        axes.set_ylabel("strategy")
        legend_above(axes, legend_columns(shown, WIDE))
    return figure


def step_timelines(windows: Sequence[tuple[RunGroup, TimelineWindow]], span: float) -> Figure:
    """What every worker did in the same short span of time, one panel per strategy."""
    lanes = [max(1, len(window.lanes)) for _, window in windows]
    with house_style():
        height = 0.8 + sum(0.46 + 0.32 * lane for lane in lanes)
        figure, panels = new_figure(
            WIDE, height, nrows=len(windows), squeeze=False, sharex=True, height_ratios=lanes
        )
        for (group, window), axes in zip(windows, panels[:, 0], strict=True):
            _lanes(axes, window)
            axes.set_ylabel("rank")
            axes.set_title(group.label, pad=3)
        last = panels[-1, 0]
        last.set_xlim(0, span * 1000)
        last.set_xlabel("milliseconds")
        handles = [Patch(color=TIME_COLOURS[part], label=part) for part in TIME_PARTS]
        if any(bar.part == "hidden" for _, w in windows for _, bars in w.lanes for bar in bars):
            handles.append(Patch(label="hidden", **HIDDEN))
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def _lanes(axes: Axes, window: TimelineWindow) -> None:
    for row, (_, bars) in enumerate(window.lanes):
        for part in TIME_PARTS:
            spans = [(1000 * b.start, 1000 * b.seconds) for b in bars if b.part == part]
            axes.broken_barh(spans, (row - 0.33, 0.66), color=TIME_COLOURS[part], linewidth=0)
        beside = [(1000 * b.start, 1000 * b.seconds) for b in bars if b.part == "hidden"]
        axes.broken_barh(beside, (row - 0.33, 0.66), **HIDDEN)
        starts = [1000 * bar.start for bar in bars if bar.first]
        axes.vlines(starts, row - 0.42, row + 0.42, color=INK, linewidth=1.1)
    if window.switch is not None:
        axes.axvline(1000 * window.switch, color=INK, linewidth=1.2, linestyle=(0, (3, 2)))
    axes.set_yticks(range(len(window.lanes)), [f"worker {rank}" for rank, _ in window.lanes])
    axes.set_ylim(len(window.lanes) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def staleness_bars(study: StudyData, groups: Sequence[RunGroup]) -> Figure:
    """How many foreign updates came between a worker's pull and its push."""
    colour = colours([group.label for group in study.groups])
    with house_style():
        labels = [group.label for group in groups]
        figure, axes = new_figure(WIDE, 2.7 + legend_height(labels, WIDE))
        width = 0.8 / len(groups)
        for index, group in enumerate(groups):
            counts = group.shown.summary.staleness
            total = sum(counts.values())
            places = [value + (index - (len(groups) - 1) / 2) * width for value in counts]
            heights = [count / total for count in counts.values()]
            axes.bar(places, heights, width * 0.92, color=colour[group.label], label=group.label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        most = max(max(group.shown.summary.staleness) for group in groups)
        axes.set_xlim(-0.6, max(most, 3) + 0.6)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %", decimals=0))
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("updates of others that a gradient had missed")
        axes.set_ylabel("share of updates")
        legend_above(axes, legend_columns(labels, WIDE))
    return figure
