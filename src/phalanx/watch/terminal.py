"""The essentials of a run in a terminal of 80 columns and 24 lines, also over SSH."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.words import loss, share
from phalanx.observe.summary.run_status import RUNNING
from phalanx.watch.feed.chart_types import Chart
from phalanx.watch.feed.cluster_view import ClusterView
from phalanx.watch.feed.reading.log_tail import visible
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.feed.run_view import Mark, RunView
from phalanx.watch.run_words import (
    MACHINES,
    WORKERS,
    machine_cells,
    mark_words,
    progress_words,
    title_words,
    worker_cells,
)

PERIOD = 0.5
"""Seconds between two looks at the run; the screen is drawn anew only if something changed."""
HEIGHT = 24
LONGEST_READING = 60.0
"""Seconds after which a single frame is shown even if not all is read."""
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_CELLS, _SPARK_NAME = 12, 20
_BAR = 18
_WIDTHS = (26, 11, 11, 11, 10, 10)
"""The cells of each column; the first one's text is on its left."""
_CHARTS_EVERY = 2.0
_STYLES = {"running": "cyan", "done": "green", "failed": "red", "lost": "red", "stopped": "yellow"}
_MARK_STYLES = {"alert": "red", "fault": "yellow"}


def watch_in_terminal(paths: RunPaths, console: Console | None = None) -> None:
    """Show a run until it ends, or until Ctrl-C, which ends nothing but this.

    Without a terminal, and of a run that has ended, one frame is printed.
    """
    console = console or Console(highlight=False)
    screen = _Screen(RunFeed(paths))
    try:
        with contextlib.suppress(KeyboardInterrupt), _ends_on_sigterm():
            screen.feed.refresh()
            if console.is_terminal and not console.is_dumb_terminal and screen.goes_on:
                screen.follow(console)
            screen.read_all()
        height = console.height - 1 if console.is_terminal else HEIGHT
        last = screen.frame(console.width, max(height, 4), console.encoding)
        console.print(last, soft_wrap=True)
    finally:
        screen.feed.close()


@contextlib.contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C, so that the terminal is left as it was."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not in the main thread, where signals do not arrive
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Screen:
    """Draws a run; charts are made at most every few seconds."""

    def __init__(self, feed: RunFeed) -> None:
        self.feed = feed
        self._charts: list[Chart] = []
        self._drawn = float("-inf")

    @property
    def goes_on(self) -> bool:
        return self.feed.status == RUNNING

    def read_all(self) -> None:
        ends = time.monotonic() + LONGEST_READING
        while self.feed.refresh() and time.monotonic() < ends:
            if self.goes_on and self.feed.building is None:
                break

    def follow(self, console: Console) -> None:
        """Draw the run until it ends."""
        shown = None
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while self.goes_on:
                changed = self.feed.refresh()
                if changed or console.size != shown:
                    shown = console.size
                    live.update(self.frame(*shown, console.encoding), refresh=True)
                time.sleep(PERIOD if self.feed.building is None else PERIOD / 10)

    def frame(self, width: int, height: int, encoding: str) -> Text:
        """Return at most ``height`` lines of at most ``width`` cells."""
        now = time.monotonic()
        if now - self._drawn >= _CHARTS_EVERY:
            self._charts, self._drawn = self.feed.charts("time", 2 * _SPARK_CELLS), now
        view = self.feed.view()
        lines = frame_of(view, self._charts, self.feed.cluster(2), height)
        room = height - len(lines) - 1
        if room > 0 and (printed := self.feed.log(0, room).lines):
            lines += [Text("printed by worker 0", "dim"), *(Text(line) for line in printed)]
        for line in lines:
            _fit(line, width, encoding)
        return Text("\n").join(lines[:height])


def _fit(line: Text, width: int, encoding: str) -> None:
    """Cut a line, and leave out what the terminal cannot show or would obey."""
    line.plain = visible(line.plain).replace("\t", " ").replace("\n", " ")
    if not encoding.lower().startswith("utf"):
        line.plain = line.plain.encode(encoding, "replace").decode(encoding)
    line.truncate(width)


def frame_of(
    view: RunView, charts: Sequence[Chart], cluster: ClusterView, height: int
) -> list[Text]:
    """Return the lines above the log, which leave some room for it."""
    room = max(3, height - 11)
    lines = [_head(view), _progress(view), _sparks(charts)]
    workers = min(len(view.workers), max(2, room // 2))
    lines += _table(WORKERS, [worker_cells(row) for row in view.workers], workers)
    machines = [machine for machine in cluster.machines if machine.now]
    lines += _table(MACHINES, [machine_cells(row) for row in machines], max(1, room // 4))
    if view.marks:
        lines.append(Text("what happened", "dim"))
        lines += [_mark(mark) for mark in view.marks[-max(1, room // 4) :]]
    return lines


def _head(view: RunView) -> Text:
    return Text.assemble(
        (visible(view.title), "bold"),
        "  ",
        (visible(view.status), _STYLES.get(view.status, "dim")),
        f"  {visible(title_words(view))}",
    )


def _progress(view: RunView) -> Text:
    done = view.progress.share
    if done is None:
        return Text(progress_words(view))
    full = round(_BAR * done)
    bar = ("█" * full, "cyan"), ("░" * (_BAR - full), "dim")
    return Text.assemble(*bar, " ", progress_words(view))


def _sparks(charts: Sequence[Chart]) -> Text:
    by_name = {chart.name: chart for chart in charts}
    text = Text()
    for name, words in (("loss", loss), ("evaluation", share)):
        series = by_name[name].series[-1:] if name in by_name else []
        for one in series:
            if values := [value for value in one.values if value is not None]:
                text.append(f"{visible(one.name)[:_SPARK_NAME]} ", "dim")
                text.append(sparkline(values, _SPARK_CELLS), "cyan")
                text.append(f" {words(values[-1])}   ")
    return text


def sparkline(values: Sequence[float], cells: int) -> str:
    """Draw ``values`` as bars of eight heights, one of the newest in each part of time."""
    parts = max(1, -(-len(values) // cells))
    shown = list(values)[::-parts][::-1]
    low, high = min(shown), max(shown)
    top = len(_SPARKS) - 1
    return "".join(
        _SPARKS[round(top * (v - low) / (high - low)) if high > low else 0] for v in shown
    )


def _table(head: Sequence[str], rows: Sequence[list[str]], most: int) -> list[Text]:
    """Return a head and at most ``most`` rows; of many, the last says how many more there are."""
    if not rows:
        return []
    kept = rows if len(rows) <= most else rows[: most - 1]
    lines = [_row(head, "dim"), *(_row(row, "") for row in kept)]
    if len(kept) < len(rows):
        lines.append(Text(f"and {len(rows) - len(kept)} more", "dim"))
    return lines


def _row(cells: Sequence[str], style: str) -> Text:
    parts = []
    for place, (text, width) in enumerate(zip(cells, _WIDTHS, strict=False)):
        shown = visible(text)
        if cell_len(shown) > width - 1:
            shown = set_cell_size(shown, width - 2) + "…"
        gap = " " * (width - cell_len(shown))
        parts.append(shown + gap if place == 0 else gap + shown)
    return Text("".join(parts).rstrip(), style)


def _mark(mark: Mark) -> Text:
    return Text(visible(mark_words(mark)), _MARK_STYLES.get(mark.kind, ""))
