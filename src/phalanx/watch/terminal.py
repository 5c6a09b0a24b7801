"""The essentials of a run in a terminal of 80 columns and 24 lines, also over SSH."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence

from rich.cells import set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.words import clock, count, loss, rough_share, share, size
from phalanx.observe.summary.run_status import RUNNING
from phalanx.watch.feed.chart_types import Chart
from phalanx.watch.feed.reading.log_tail import visible
from phalanx.watch.feed.run_feed import RunFeed
from phalanx.watch.feed.run_view import MachineRow, Mark, RunView, WorkerRow

PERIOD = 1.0
"""Seconds between two looks at the run; the screen is drawn anew only if something changed."""
HEIGHT = 24
LONGEST_READING = 60.0
"""Seconds after which a single frame is shown even if not all is read."""
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_CELLS, _SPARK_NAME = 12, 20
_BAR = 18
_NAME_CELLS, _FIGURE_CELLS = 24, 11
_WORKERS = ("worker", "samples/s", "share", "waiting", "loss", "state")
_MACHINES = ("machine", "cpu", "memory", "received/s", "sent/s")
_STYLES = {
    "running": "cyan", "done": "green", "failed": "red", "lost": "red", "stopped": "yellow",
    "alert": "red", "fault": "yellow",
}  # fmt: skip


def watch_in_terminal(paths: RunPaths, console: Console | None = None) -> None:
    """Show a run until it ends, or until Ctrl-C, which ends nothing but this.

    Without a terminal, and of a run that has ended, one frame is printed.
    """
    console = console or Console(highlight=False)
    feed = RunFeed(paths)
    with contextlib.closing(feed):
        with contextlib.suppress(KeyboardInterrupt):
            feed.refresh()
            if console.is_terminal and feed.status == RUNNING:
                _follow(feed, console)
            read_all(feed)
        height = console.height - 1 if console.is_terminal else HEIGHT
        last = frame_of(feed, console.width, max(height, 4), console.encoding)
        console.print(last, soft_wrap=True)


def read_all(feed: RunFeed) -> None:
    """Read what there is: of a run that goes on, until little is left."""
    ends = time.monotonic() + LONGEST_READING
    while feed.refresh() and time.monotonic() < ends:
        if feed.status == RUNNING and feed.building is None:
            break


def _follow(feed: RunFeed, console: Console) -> None:
    """Draw the run until it ends; SIGTERM, too, leaves the terminal as it was."""
    shown, before = None, signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while feed.status == RUNNING:
                if feed.refresh() or console.size != shown:
                    shown = console.size
                    live.update(frame_of(feed, *shown, console.encoding), refresh=True)
                time.sleep(PERIOD if feed.building is None else PERIOD / 10)
    finally:
        signal.signal(signal.SIGTERM, before)


def frame_of(feed: RunFeed, width: int, height: int, encoding: str = "utf-8") -> Text:
    """Return at most ``height`` lines of at most ``width`` cells."""
    view, few = feed.view(), max(1, height // 5)
    lines = [_head(view), _progress(view), _sparks(feed.charts("time", 2 * _SPARK_CELLS))]
    lines += _table(_WORKERS, [_worker(row) for row in view.workers], 2 * few)
    machines = [machine for machine in feed.cluster(2).machines if machine.now]
    lines += _table(_MACHINES, [_machine(row) for row in machines], few)
    lines += [_mark(mark) for mark in view.marks[-few:]]
    room = height - len(lines) - 1
    if room > 0 and (printed := feed.log(0, room).lines):
        lines += [Text("printed by worker 0", "dim"), *map(Text, printed)]
    for line in lines:  # what the terminal cannot show or would obey is left out
        line.plain = visible(line.plain).replace("\t", " ").replace("\n", " ")
        line.plain = line.plain.encode(encoding, "replace").decode(encoding)
        line.truncate(width)
    return Text("\n").join(lines[:height])


def _head(view: RunView) -> Text:
    machines = f" on {len(view.machines)} machines" if len(view.machines) > 1 else ""
    workers = f"{len(view.workers)} worker{'s' * (len(view.workers) != 1)}"
    status = view.status, _STYLES.get(view.status, "dim")
    how = f"{view.strategy or view.system}  {workers}{machines}"
    return Text.assemble((visible(view.title), "bold"), "  ", status, "  ", how)


def _progress(view: RunView) -> Text:
    """Return how far it is, how fast it goes, and how long it still takes."""
    told, took = view.progress, clock(view.seconds)
    rates = [row.samples_per_second for row in view.workers if row.samples_per_second is not None]
    parts = [
        rough_share(told.share) if told.share is not None else "",
        f"epoch {told.epoch}{f'/{told.epochs}' if told.epochs else ''}",
        f"{count(sum(rates))} samples/s" if rates else "",
        f"{took} so far" if view.status == RUNNING else f"took {took}",
        f"{clock(told.left_seconds)} to go" if told.left_seconds else "",
        f"reading: {rough_share(view.building)}" if view.building is not None else "",
    ]
    full = round(_BAR * (told.share or 0.0))
    bar = ("█" * full, "cyan"), ("░" * (_BAR - full), "dim")
    return Text.assemble(*bar, " ", "  ".join(part for part in parts if part))


def _sparks(charts: Sequence[Chart]) -> Text:
    text = Text()
    for chart in charts:
        words = {"loss": loss, "evaluation": share}.get(chart.name)
        series = next(reversed(chart.series), None)
        values = [value for value in series.values if value is not None] if series else []
        if words and series and values:
            text.append(f"{visible(series.name)[:_SPARK_NAME]} ", "dim")
            text.append(sparkline(values, _SPARK_CELLS), "cyan")
            text.append(f" {words(values[-1])}   ")
    return text


def sparkline(values: Sequence[float], cells: int) -> str:
    """Draw ``values`` as bars of eight heights, one of the newest in each part of time."""
    every = max(1, -(-len(values) // cells))
    shown = list(values)[::-every][::-1]
    low, high = min(shown), max(shown)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round(scale * (value - low))] for value in shown)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> list[Text]:
    """Return a head and at most ``most`` rows; of many, the last says how many more there are."""
    if not rows:
        return []
    kept = rows if len(rows) <= most else rows[: most - 1]
    lines = [Text(_row(head), "dim"), *(Text(_row(row)) for row in kept)]
    if len(kept) < len(rows):
        lines.append(Text(f"and {len(rows) - len(kept)} more", "dim"))
    return lines


def _row(cells: Sequence[str]) -> str:
    figures = "".join(cell.rjust(_FIGURE_CELLS) for cell in cells[1:])
    return set_cell_size(visible(cells[0]), _NAME_CELLS) + figures


def _worker(row: WorkerRow) -> list[str]:
    return [
        " ".join(filter(None, (str(row.rank), row.machine, row.device))),
        count(row.samples_per_second),
        rough_share(row.share),
        rough_share(row.waiting),
        loss(row.loss),
        row.state,
    ]


def _machine(row: MachineRow) -> list[str]:
    now = row.now or {}
    percents = [now.get(name) for name in ("cpu", "memory_percent")]
    rates = [size(now.get(name)) for name in ("received", "sent")]
    shown = [rough_share(None if part is None else part / 100) for part in percents]
    return [f"{row.name}{' (lost)' if row.state == 'lost' else ''}", *shown, *rates]


def _mark(mark: Mark) -> Text:
    when = f"{'-' if mark.time < 0 else ''}{clock(abs(mark.time))}"
    return Text(f"{when}  {mark.text}", _STYLES.get(mark.kind, ""))
