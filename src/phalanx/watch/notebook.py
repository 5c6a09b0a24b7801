"""A run in a notebook: HTML with small charts, without a server or a port.

It thus works in a remote notebook too: what is shown travels as the output of a cell.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from phalanx.core.run_folder.run_paths import RunPaths, find_run
from phalanx.core.words import count, loss, short
from phalanx.observe.summary.run_records import StudyRecord, read_record, study_folders
from phalanx.observe.summary.run_status import RUNNING
from phalanx.watch.feed.chart_types import Chart
from phalanx.watch.feed.reading.log_tail import visible
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.feed.run_view import RunView
from phalanx.watch.run_words import (
    MACHINES,
    WORKERS,
    machine_cells,
    mark_words,
    progress_words,
    title_words,
    worker_cells,
)

PERIOD = 1.0
_LONGEST = 80
_MOST_ROWS = 32
_MOST_MARKS = 8
_MOST_SERIES, _MOST_NAMED = 12, 3
_WIDTH, _HEIGHT = 280, 90
_PADDING = 4
_POINTS = 140
_SHOWN = ("loss", "evaluation", "throughput")
_STYLE = (
    ".phalanx{font:13px/1.45 system-ui,sans-serif;max-width:72em}"
    ".phalanx table{border-collapse:collapse;margin:.5em 0;font-variant-numeric:tabular-nums}"
    ".phalanx td,.phalanx th{padding:.1em .8em .1em 0;text-align:right;font-weight:normal}"
    ".phalanx td:first-child,.phalanx th:first-child{text-align:left}"
    ".phalanx th{opacity:.7}.phalanx figure{display:inline-block;margin:0 1em .5em 0}"
    ".phalanx figcaption{opacity:.8}.phalanx ul{margin:.3em 0;padding-left:1.2em}"
    ".phalanx svg{display:block;width:280px;height:90px;max-width:100%}"
    ".phalanx progress{width:100%;height:.6em}"
)


class RunPanel:
    """One run, which a notebook shows as HTML; each time anew, as it is then."""

    def __init__(self, paths: RunPaths) -> None:
        self._feed = RunFeed(paths)
        self._read()

    @property
    def goes_on(self) -> bool:
        return self._feed.status == RUNNING

    def refresh(self) -> bool:
        return self._feed.refresh()

    def close(self) -> None:
        self._feed.close()

    def _read(self) -> None:
        while self._feed.refresh() and (not self.goes_on or self._feed.building is not None):
            continue

    def html(self) -> str:
        """Return what is known now; every text of the run is escaped."""
        view = self._feed.view()
        charts = {chart.name: chart for chart in self._feed.charts("time", _POINTS)}
        machines = [machine for machine in self._feed.cluster(2).machines if machine.now]
        parts = [
            f"<style>{_STYLE}</style>",
            _head(view),
            "".join(_figure(charts[name]) for name in _SHOWN if name in charts),
            _table(WORKERS, [worker_cells(row) for row in view.workers]),
            _table(MACHINES, [machine_cells(row) for row in machines]),
            _list([mark_words(mark) for mark in view.marks[-_MOST_MARKS:]]),
            "".join(f"<p>{_text(line, 400)}</p>" for line in view.worth),
        ]
        return f'<div class="phalanx">{"".join(parts)}</div>'

    def _repr_html_(self) -> str:
        self._read()
        return self.html()

    def __repr__(self) -> str:
        view = self._feed.view()
        return f"<run {short(view.id, _LONGEST)}: {view.status}  {progress_words(view)}>"


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
        while panel.goes_on:
            time.sleep(PERIOD)
            if panel.refresh():
                update(panel.html())
    except KeyboardInterrupt:
        return
    finally:
        panel.close()


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


def _text(text: str, most: int = _LONGEST) -> str:
    """Return any text as HTML that shows it, on one line and of a bounded length."""
    return escape(short(visible(text), most))


def _head(view: RunView) -> str:
    done = view.progress.share
    bar = "" if done is None else f'<progress max="1" value="{done:.4f}"></progress>'
    words = f"{view.status}  {title_words(view)}  {progress_words(view)}"
    return f"<b>{_text(view.title)}</b> {_text(words, 300)}{bar}"


def _figure(chart: Chart) -> str:
    """Draw a chart; its caption has the newest values of what is no single worker's."""
    known = [v for one in chart.series for v in one.values if v is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    lines, told = [], []
    for place, one in enumerate(chart.series[:_MOST_SERIES]):
        colour = f"hsl({(210 + 47 * place) % 360} 60% 50%)"
        path = _path(chart.x_values, one.values, low, high)
        lines.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        newest = next((v for v in reversed(one.values) if v is not None), None)
        if newest is not None and (one.rank is None or len(chart.series) == 1):
            words = _text(f"{one.name} {_figure_words(chart.unit, newest)}")
            told.append(f'<span style="color:{colour}">■</span> {words}')
    span = f"{_figure_words(chart.unit, low)} to {_figure_words(chart.unit, high)}"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(f"{chart.title}: {span}", 300)}">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="currentColor" opacity=".05"/>'
        f"{''.join(lines)}</svg><figcaption>{' '.join(told[:_MOST_NAMED])}</figcaption></figure>"
    )


def _figure_words(unit: str, value: float) -> str:
    if unit == "share":
        return f"{100 * value:.2f} %"
    return f"{count(value)} {unit}" if unit else loss(value)


def _path(xs: Sequence[float], values: Sequence[float | None], low: float, high: float) -> str:
    """Return a line with a gap wherever a value is not known."""
    wide, tall = (xs[-1] - xs[0]) or 1.0, (high - low) or 1.0
    inner, room = _WIDTH - 2 * _PADDING, _HEIGHT - 2 * _PADDING
    parts, pen = [], "M"
    for x, value in zip(xs, values, strict=False):
        if value is None:
            pen = "M"
            continue
        across = _PADDING + inner * (x - xs[0]) / wide
        down = _PADDING + room * (1.0 - (value - low) / tall)
        parts.append(f"{pen}{across:.1f} {down:.1f}")
        pen = "L"
    return "".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [[f"<td>{_text(cell)}</td>" for cell in row] for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        lines.append([f"<td>and {len(rows) - _MOST_ROWS} more</td>"])
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{body}</table>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(line, 300)}</li>' for line in lines)}</ul>" if lines else ""
