"""A run in a notebook: what the terminal shows, as HTML with charts, without a server or a port.

It thus works in a remote notebook too: what is shown travels as the output of a cell.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from phalanx.core.run_folder.run_paths import RunPaths, find_run
from phalanx.core.words import short
from phalanx.observe.summary.run_records import StudyRecord, read_record, study_folders
from phalanx.observe.summary.run_status import RUNNING
from phalanx.watch.feed.chart_types import Chart
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.terminal import PERIOD, frame_of, read_all

_COLUMNS, _LINES = 100, 40
_WIDTH, _HEIGHT = 280, 90
_POINTS = 140
_CHARTS = ("loss", "evaluation", "throughput")
_MOST_SERIES = 12
_TEXT = '<pre style="font-family:monospace;line-height:1.3">{code}</pre>'


class RunPanel:
    """One run, which a notebook shows as HTML; each time anew, as it is then."""

    def __init__(self, paths: RunPaths) -> None:
        self.feed = RunFeed(paths)
        read_all(self.feed)

    def html(self) -> str:
        """Return what is known now; every text of the run is escaped."""
        console = Console(record=True, file=io.StringIO(), width=_COLUMNS, highlight=False)
        console.print(frame_of(self.feed, _COLUMNS, _LINES), soft_wrap=True)
        text = console.export_html(inline_styles=True, code_format=_TEXT)
        charts = [c for c in self.feed.charts("time", _POINTS) if c.name in _CHARTS]
        return f"<div>{''.join(map(_figure, charts))}{text}</div>"

    def _repr_html_(self) -> str:
        read_all(self.feed)
        return self.html()

    def __repr__(self) -> str:
        return f"<run {short(self.feed.paths.id, 80)}: {self.feed.status}>"


def show(run: str | Path | None = None) -> RunPanel | None:
    """Show a run in the notebook's cell until it ends or the cell is interrupted; see ``watch``."""
    panel = RunPanel(_paths_of(run))
    if (update := _jupyter(panel)) or (update := _marimo()):
        _follow(panel, update)
        return None
    return panel


def _paths_of(run: str | Path | None) -> RunPaths:
    """Return the run that is meant; of a study, its newest."""
    paths = find_run(None if run is None else str(run))
    record = read_record(paths.study, StudyRecord) if paths.study.is_file() else None
    inside = [one for one in study_folders(paths, record) if one.launch.exists()] if record else []
    return inside[-1] if inside else paths


def _follow(panel: RunPanel, update: Callable[[str], None]) -> None:
    try:
        update(panel.html())
        while panel.feed.status == RUNNING:
            time.sleep(PERIOD)
            if panel.feed.refresh():
                update(panel.html())
    except KeyboardInterrupt:
        return
    finally:
        panel.feed.close()


def _jupyter(panel: RunPanel) -> Callable[[str], None] | None:
    """Return what replaces the output of this cell, in a notebook of Jupyter."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or shell is None or not hasattr(shell, "kernel"):
        return None
    handle = ipython.display.display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/html": text, "text/plain": repr(panel)}, raw=True)


def _marimo() -> Callable[[str], None] | None:
    """Return what replaces the output of this cell, in a notebook of marimo."""
    marimo: Any = sys.modules.get("marimo")
    if marimo is None or not marimo.running_in_notebook():
        return None
    return lambda text: marimo.output.replace(marimo.Html(text))


def _figure(chart: Chart) -> str:
    """Draw a chart, a line a series, from its lowest value to its highest."""
    known = [value for one in chart.series for value in one.values if value is not None]
    if not known:
        return ""
    low, first = min(known), chart.x_values[0]
    wide = _WIDTH / ((chart.x_values[-1] - first) or 1.0)
    tall = _HEIGHT / ((max(known) - low) or 1.0)
    lines = []
    for place, one in enumerate(chart.series[:_MOST_SERIES]):
        points = " ".join(
            f"{wide * (x - first):.1f},{_HEIGHT - tall * (value - low):.1f}"
            for x, value in zip(chart.x_values, one.values, strict=False)
            if value is not None
        )
        colour = f"hsl({210 + 47 * place} 60% 50%)"
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    title = f"{chart.title}: {low:.4g} to {max(known):.4g} {chart.unit}"
    return (
        f'<figure style="display:inline-block;margin:.5em"><svg width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(lines)}</svg>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )
