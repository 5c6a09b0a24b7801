"""What the cluster and its machines did over time: rows of small panels, and strips of heat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, MultipleLocator

from phalanx.core.words import short
from phalanx.observe.machines.resources import cluster_columns
from phalanx.observe.summary.summary import training_window
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.plots.drawing import (
    BASE,
    FAINT,
    INK,
    PALETTE,
    colours,
    house_style,
    legend_columns,
    legend_height,
    new_figure,
)

MOST_MACHINES = 8
"""More machines have no panels of their own, but strips of heat."""
CLUSTER = "cluster"
MOST_MOMENTS = 400
_WIDE = 10.6
_LONG_NAME = 14
_STRIP, _TALLEST = 0.2, 14.0
"""Inches of a strip, and of all together at most."""
_COLOURS = (PALETTE[0], PALETTE[1], PALETTE[7], PALETTE[4])
_LINES: Any = ("-", (0, (3, 1.5)), (0, (1, 1)), "-")


class Column(NamedTuple):
    """A figure of machines: its name, its axis, and the fields that add up to it or lie beside."""

    title: str
    unit: str
    scale: float
    parts: Mapping[str, str]
    """Fields by the name that the legend has for them; not told apart on some machines."""
    whole: str = ""
    """The field of all parts together."""
    stacked: bool = False

    def look(self, part: str, colour: str | None) -> dict[str, Any]:
        """Return how a part is drawn: in its colour, or as a line of its kind in that of a run."""
        place = list(self.parts).index(part) if part in self.parts else 0
        return {"color": colour or _COLOURS[place], "linestyle": _LINES[place] if colour else "-"}


COLUMNS = (
    Column(
        "CPU", "%", 1,
        {"user": "cpu_user", "system": "cpu_system", "wait": "cpu_wait", "steal": "cpu_steal"},
        "cpu_percent", stacked=True,
    ),
    Column("memory", "GB", 1e9, {"": "memory_bytes"}),
    Column(
        "network", "MB/s", 1e6,
        {"in": "network_received_per_second", "out": "network_sent_per_second"},
        "network_bytes_per_second",
    ),
    Column(
        "disk", "MB/s", 1e6,
        {"read": "disk_read_per_second", "written": "disk_written_per_second"},
        "disk_bytes_per_second",
    ),
    Column("GPU", "%", 1, {"": "gpu_percent"}),
    Column("power", "W", 1, {"": "watts"}),
    Column(
        "pressure", "% of time", 1,
        {"CPU": "pressure_cpu", "memory": "pressure_memory", "disk": "pressure_io"},
    ),
)  # fmt: skip
"""Those of which nothing is known, or that were never above zero, are left out."""


class _Story(NamedTuple):
    """The figures of a machine or a cluster in one run, over seconds since its first reading."""

    times: Any
    columns: Mapping[str, Any]
    training: tuple[float, float] | None

    def known(self, fields: Mapping[str, str]) -> dict[str, Any]:
        found = {name: self.columns[field] for name, field in fields.items()}
        return {name: values for name, values in found.items() if np.nanmax(values, initial=0) > 0}


def machine_use(study: StudyData) -> Figure:
    """One row for the cluster and one per machine, one column per resource with its own scale."""
    names = machine_names(study)
    rows = [CLUSTER] if len(names) > 1 else []
    rows += names if len(names) <= MOST_MACHINES else []
    stories = {(g.label, row): story for g in study.groups for row, story in _stories(g, rows)}
    columns = [c for c in COLUMNS if any(_parts(s, c, None) for s in stories.values())]
    columns = columns or [COLUMNS[0]]
    labels = [group.label for group in study.groups]
    several = len(labels) > 1
    with house_style():
        room = legend_height(labels, _WIDE) + 0.25 if several else 0.0
        figure, panels = new_figure(
            _WIDE, (2.9 if len(rows) == 1 else 1.0 + 1.05 * len(rows)) + room,
            nrows=len(rows), ncols=len(columns), squeeze=False, sharex=True,
            width_ratios=[1.7 if column.stacked else 1 for column in columns],
        )  # fmt: skip
        for row, name in zip(panels, rows, strict=True):
            for axes, column in zip(row, columns, strict=True):
                for label, colour in colours(labels).items():
                    if story := stories.get((label, name)):
                        _draw(axes, story, column, colour if several else None)
                _scale(axes, column)
            if len(rows) > 1:
                row[0].annotate(
                    short(name, _LONG_NAME), (0, 0.5), (-44, 0), "axes fraction", "offset points",
                    ha="right", va="center", weight="semibold",
                )  # fmt: skip
        for axes, column in zip(panels[0], columns, strict=True):
            _title(axes, column, stories.values(), INK if several else None)
        for axes in panels[-1]:
            axes.set_xlabel("seconds")
        if several:
            marks = [Patch(color=colour, label=label) for label, colour in colours(labels).items()]
            figure.legend(
                handles=marks, loc="outside upper left", ncols=legend_columns(labels, _WIDE)
            )
    return figure


def heat_strips(study: StudyData) -> Figure:
    """One strip per machine: the stronger, the more of its processor was used."""
    shown = {g.label: dict(_stories(g, machine_names(study))) for g in study.groups}
    shown = {label: stories for label, stories in shown.items() if stories}
    strip = min(_STRIP, _TALLEST / sum(map(len, shown.values())))
    heights = [strip * len(stories) for stories in shown.values()]
    heat = LinearSegmentedColormap.from_list("heat", [to_rgba(PALETTE[0], a) for a in (0.04, 1)])
    with house_style():
        figure, panels = new_figure(
            _WIDE, sum(heights) + 0.7 * len(shown) + 0.4, nrows=len(shown), squeeze=False,
            sharex=True, height_ratios=heights,
        )  # fmt: skip
        for axes, (label, stories) in zip(panels[:, 0], shown.items(), strict=True):
            names = [short(name, _LONG_NAME) for name in stories]
            end = max(story.times[-1] for story in stories.values()) or 1.0
            moments = np.linspace(0, end, max(2, min(MOST_MOMENTS, int(end) + 1)))
            use = np.array([_at(story, moments) for story in stories.values()])
            image = axes.imshow(
                use, cmap=heat, vmin=0, vmax=100, aspect="auto", interpolation="nearest",
                extent=(0, end, len(names) - 0.5, -0.5),
            )  # fmt: skip
            every = max(1, round(0.14 / strip))
            axes.set_yticks(range(0, len(names), every), names[::every])
            axes.grid(visible=False)
            axes.set_ylabel("machine")
            axes.set_title(label)
            for moment in next(iter(stories.values())).training or ():
                axes.axvline(moment, color=INK, linewidth=1, linestyle=(0, (2, 2)))
        panels[-1, 0].set_xlabel("seconds")
        bar = figure.colorbar(image, ax=panels[:, 0].tolist(), fraction=0.03, pad=0.01)
        bar.set_label("CPU, % of all cores")
        bar.outline.set_visible(False)
    return figure


def machine_names(study: StudyData) -> list[str]:
    """Return the names of the machines that were watched, in the order of the plan."""
    names: dict[str, None] = {}
    for group in study.groups:
        samples = group.shown.files.samples
        planned = [machine.name for machine in group.shown.summary.machines]
        names |= dict.fromkeys(name for name in [*planned, *samples] if samples.get(name))
    return list(names)


def _stories(group: RunGroup, names: Sequence[str]) -> Iterator[tuple[str, _Story]]:
    samples = {name: found for name, found in group.shown.files.samples.items() if found}
    if not samples:
        return
    began = min(found[0].time for found in samples.values())
    first, last = training_window(group.shown.files.ranks)
    training = (first - began, last - began) if first < last else None
    for name in names:
        whole = name == CLUSTER and name not in samples
        times, columns = cluster_columns(samples if whole else {name: samples.get(name, [])})
        if times:
            arrays = {field: np.array(values, float) for field, values in columns.items()}
            yield name, _Story(np.array(times) - began, arrays, training)


def _at(story: _Story, moments: Any) -> Any:
    """Return the use of the processor at some moments; not a number where nothing was read."""
    places = np.searchsorted(story.times, moments).clip(max=len(story.times) - 1)
    there = (moments >= story.times[0] - 2) & (moments <= story.times[-1] + 2)
    return np.where(there, story.columns["cpu_percent"][places], np.nan)


def _parts(story: _Story, column: Column, colour: str | None) -> dict[str, Any]:
    """Return what is drawn of a figure: its parts, or their sum if they are not known or would be
    stacked for each of several runs."""
    parts = story.known(column.parts)
    if column.whole and (not parts or (column.stacked and colour)):
        return story.known({"": column.whole})
    return parts


def _draw(axes: Axes, story: _Story, column: Column, colour: str | None) -> None:
    """Draw a figure of one run; with ``colour``, of one of several."""
    parts = _parts(story, column, colour)
    values = [part / column.scale for part in parts.values()]
    looks = [column.look(name, colour) for name in parts]
    if not parts:
        return
    if column.stacked and len(parts) > 1:
        shades = [look["color"] for look in looks]
        axes.stackplot(story.times, np.nan_to_num(values), colors=shades, alpha=0.75, linewidth=0)
    else:
        for series, look in zip(values, looks, strict=True):
            axes.plot(story.times, series, linewidth=1.4, **look)
    if story.training and colour is None:
        axes.axvspan(*story.training, color=BASE, alpha=0.13, linewidth=0, zorder=0)
    elif story.training:
        axes.plot(story.training, (0, 0), color=colour, linewidth=4, solid_capstyle="butt")


def _title(axes: Axes, column: Column, stories: Iterable[_Story], colour: str | None) -> None:
    """Name the column, and the colours or lines of its parts."""
    drawn = {name for story in stories for name in _parts(story, column, colour)}
    marks = [
        axes.plot([], [], label=name, **column.look(name, colour))[0]
        for name in column.parts
        if name and name in drawn
    ]
    axes.set_title(column.title, pad=19)
    if marks:
        axes.legend(
            handles=marks, loc="lower left", bbox_to_anchor=(-0.08, 1.0), ncols=len(marks),
            borderaxespad=0.1, columnspacing=0.8, handlelength=0.9, handletextpad=0.35, fontsize=8,
        ).set_in_layout(False)  # fmt: skip


def _scale(axes: Axes, column: Column) -> None:
    if not (axes.lines or axes.collections):
        axes.axis("off")  # nothing was measured on this machine
        return
    share = column.title in ("CPU", "GPU")
    axes.set_ylim(bottom=0, top=105 if share else 1.08 * axes.get_ylim()[1])
    axes.set_ylabel(column.unit, fontsize=8)
    axes.yaxis.set_major_locator(MultipleLocator(50) if share else MaxNLocator(3))
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.axhline(0, color=FAINT, linewidth=1)
