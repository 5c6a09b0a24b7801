"""What the machines were doing over time: a row of small panels per machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from phalanx.core.words import short
from phalanx.observe.events.event_types import MachineSample
from phalanx.report.load import StudyData
from phalanx.report.plots.drawing import (
    FAINT,
    colours,
    house_style,
    legend_columns,
    legend_height,
    new_figure,
)

Reading = Callable[[MachineSample], float | None]
MOST_MACHINES = 8
_WIDE = 10.6
_ALWAYS = 3
_LONG_NAME = 14
COLUMNS: tuple[tuple[str, Reading], ...] = (
    ("CPU, %", lambda s: s.cpu_percent),
    ("memory, GB", lambda s: s.memory_bytes / 1e9),
    ("network, MB/s", lambda s: s.network_bytes_per_second / 1e6),
    ("disk, MB/s", lambda s: s.disk_bytes_per_second and s.disk_bytes_per_second / 1e6),
    ("GPU, %", lambda s: s.gpu_percent),
    ("power, W", lambda s: s.watts),
)
"""The first ``_ALWAYS`` are always shown, the others if some machine has them."""


def machine_use(study: StudyData) -> Figure:
    """One row per machine, one column per resource with one scale, one line per strategy."""
    names = machine_names(study)[:MOST_MACHINES]
    columns = [c for i, c in enumerate(COLUMNS) if i < _ALWAYS or _is_known(study, c[1])]
    labels = [group.label for group in study.groups]
    several = len(labels) > 1
    with house_style():
        room = legend_height(labels, _WIDE) + 0.25 if several else 0.0
        height = 2.75 if len(names) == 1 else 0.8 + 1.0 * len(names)
        figure, panels = new_figure(
            _WIDE, height + room, nrows=len(names), ncols=len(columns), squeeze=False,
            sharex=True, sharey="col",
        )  # fmt: skip
        for row, name in zip(panels, names, strict=True):
            for axes, (_, read) in zip(row, columns, strict=True):
                _lines(axes, study, name, read)
        _titles(panels, names, [title for title, _ in columns])
        if several:
            handles, found = panels[0, 0].get_legend_handles_labels()
            columns_of_names = legend_columns(labels, _WIDE)
            figure.legend(handles, found, loc="outside upper left", ncols=columns_of_names)
    return figure


def machine_names(study: StudyData) -> list[str]:
    """Return the names of the machines that were watched, in the order of the plan."""
    names: dict[str, None] = {}
    for group in study.groups:
        samples = group.shown.files.samples
        planned = [machine.name for machine in group.shown.summary.machines]
        names |= dict.fromkeys(name for name in [*planned, *samples] if samples.get(name))
    return list(names)


def _is_known(study: StudyData, read: Reading) -> bool:
    machines = [m for group in study.groups for m in group.shown.files.samples.values()]
    return any(read(sample) is not None for samples in machines for sample in samples)


def _lines(axes: Axes, study: StudyData, machine: str, read: Reading) -> None:
    colour = colours([group.label for group in study.groups])
    for group in study.groups:
        samples = group.shown.files.samples.get(machine, [])
        known = [(s.time, value) for s in samples if (value := read(s)) is not None]
        times = [time - samples[0].time for time, _ in known]
        values = [value for _, value in known]
        axes.plot(times, values, color=colour[group.label], label=group.label, linewidth=1.4)
        if len(study.groups) == 1:
            axes.fill_between(times, values, color=colour[group.label], alpha=0.10, linewidth=0)


def _titles(panels: Any, names: Sequence[str], titles: Sequence[str]) -> None:
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title)
    for row, name in zip(panels, names, strict=True):
        if len(names) > 1:
            label = short(name, _LONG_NAME)
            row[0].set_ylabel(label, rotation=0, ha="right", va="center", weight="semibold")
        for axes, title in zip(row, titles, strict=True):
            _scale(axes, share="%" in title, few=len(names) > 1)
    for axes in panels[-1]:
        axes.set_xlabel("seconds")


def _scale(axes: Axes, *, share: bool, few: bool) -> None:
    axes.set_ylim(bottom=0, top=105 if share else None)
    most = 3 if few else 5
    axes.yaxis.set_major_locator(MultipleLocator(50) if share else MaxNLocator(most))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if any(np.size(line.get_xdata()) for line in axes.lines):
        axes.axhline(0, color=FAINT, linewidth=1)
    else:
        axes.axis("off")  # nothing was measured on this machine
