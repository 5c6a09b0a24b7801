"""Progress of a run: a live display on a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phalanx.cli.output import Output
from phalanx.core.terminal import coloured, printable, wrapped
from phalanx.core.words import UNKNOWN, clock, count, loss, rough_share, share
from phalanx.launch.launcher import Launch
from phalanx.launch.run.observer import Observer
from phalanx.observe.events import event_types as ev
from phalanx.observe.events.change_words import LossOnce, words_on
from phalanx.observe.events.event_types import Event
from phalanx.observe.speedup.speedup_lines import LiveWorth
from phalanx.observe.summary.progress_state import (
    EpochLine,
    ProgressState,
    WorkerState,
    trained_before,
)
from phalanx.observe.summary.summary import Summary

REFRESHES_PER_SECOND = 4
MOST_ROWS = 16


@contextmanager
def observe(out: Output, title: str, *, worth: bool = False) -> Iterator[Observer]:
    """Yield a live display if the output is a terminal, else one of plain lines.

    ``worth``: also print, once, what each machine contributes.
    """
    if not out.human.is_terminal:
        yield PlainProgress(out.human, out.errors, worth=worth)
        return
    display = LiveProgress(out.human, title, out.errors, worth=worth)
    try:
        yield display
    finally:
        display.close()


class _Progress(Observer):
    """The base of both displays: the state, and the notes that are printed once."""

    def __init__(self, told_on: Console, worth: bool) -> None:
        self.state = ProgressState()
        self._says_worth = worth
        self._worth: LiveWorth | None = None
        self._told_on = told_on
        self._noted = False
        self._changes, self._mark = ChangeLines(), ""

    def started(self, launch: Launch) -> None:
        self.state.epochs = launch.settings.epochs
        self._mark = "simulated  " if launch.settings.virtual else ""
        self.state.before = trained_before(launch.settings.resume)
        # Workers that take turns in one process say nothing about machines.
        if self._says_worth and launch.launcher != "inprocess":
            settings = launch.settings
            self._worth = LiveWorth(settings.strategy, balance=settings.balance == "auto")

    def note(self, text: str) -> None:
        self._told_on.print(wrapped(text, self._told_on.file), style="dim")

    def event(self, event: Event) -> None:
        self.state.take(event)
        if self.state.notes and not self._noted:
            self._noted = True
            for note in self.state.notes:
                self.note(f"note: {note}")
        if change := self._changes.line(event):
            self._told_on.print(printable(change), style="dim")
        for line in self._worth.take(event) if self._worth else ():
            self._told_on.print(wrapped(line, self._told_on.file), style="bold")


class PlainProgress(_Progress):
    """Plain lines for a pipe or a file: the script's to ``script_output``, others to stderr."""

    def __init__(self, script_output: Console, errors: Console, *, worth: bool = False) -> None:
        super().__init__(errors, worth)
        self._script_output = script_output

    def event(self, event: Event) -> None:
        super().event(event)
        self._tell(ended=False)

    def output(self, rank: int, line: str) -> None:
        self._script_output.print(coloured(line.rstrip("\n")))

    def failure(self, rank: int, line: str) -> None:
        self._told_on.print(printable(line))

    def finished(self, summary: Summary) -> None:
        self._tell(ended=True)

    def _tell(self, *, ended: bool) -> None:
        for line in self.state.finished_epochs(ended=ended):
            self._told_on.print(self._mark + epoch_line(line, self.state.epochs))


class LiveProgress(_Progress):
    """A live display: a bar with the time left, and one row per worker."""

    def __init__(
        self, console: Console, title: str, errors: Console | None = None, *, worth: bool = False
    ) -> None:
        super().__init__(console, worth)
        self._title = title
        self._errors = errors or console
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    def started(self, launch: Launch) -> None:
        super().started(launch)
        self._live.start()

    def output(self, rank: int, line: str) -> None:
        self._told_on.print(coloured(line.rstrip("\n")))

    def failure(self, rank: int, line: str) -> None:
        self.close()  # a live display takes stderr over, and there is nothing left to show
        self._errors.print(printable(line))

    def finished(self, summary: Summary) -> None:
        self.close()

    def close(self) -> None:
        self._live.stop()

    def render(self) -> RenderableType:
        if not self.state.workers:
            return Text(f"{self._title}  starting workers", style="dim")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("worker", no_wrap=True, max_width=22, overflow="ellipsis")
        for name in ("epoch", "samples/s", "loss", "waiting", "staleness"):
            table.add_column(name, justify="right", no_wrap=True)
        workers = [self.state.workers[rank] for rank in sorted(self.state.workers)]
        for worker in workers[:MOST_ROWS]:
            table.add_row(*_cells(worker, self.state.epochs))
        if len(workers) > MOST_ROWS:
            table.add_row(f"and {len(workers) - MOST_ROWS} more")
        return Group(_headline(self._title, self.state), _overall(self.state), table)


def epoch_line(line: EpochLine, epochs: int | None) -> str:
    """``epoch  3/10  loss 0.1234  test accuracy 97.31 %  12,345 samples/s  0:08``."""
    total = f"/{epochs}" if epochs else ""
    width = len(str(epochs or 0))
    which = f"epoch {line.epoch:>{width}}{total}"
    if line.step is not None:
        which = f"step {line.step:>6,}"
    accuracy = f"{line.accuracy_name} {share(line.accuracy)}" if line.accuracy is not None else ""
    if not line.trained:
        return f"{which}  already trained, evaluated again  {accuracy}".rstrip()
    pace = f"{count(line.rate)} samples/s"
    parts = (which, f"loss {loss(line.loss)}", accuracy, pace, clock(line.elapsed))
    return "  ".join(part for part in parts if part)


def _headline(title: str, state: ProgressState) -> Text:
    text = Text(title, style="bold", no_wrap=True, overflow="ellipsis")
    shown = [n for n in ("test_accuracy", "validation_accuracy", "test_loss") if n in state.logged]
    for name in shown[:1]:
        value = state.logged[name]
        written = share(value) if name.endswith("accuracy") else loss(value)
        text.append(f"  {name.replace('_', ' ')} {written}", style="not bold cyan")
    return text


def _overall(state: ProgressState) -> Table:
    done = state.share
    total = f"/{state.epochs}" if state.epochs else ""
    pace = f"  {count(state.rate)} samples/s" if state.rate is not None else ""
    words = f"epoch {state.epoch}{total}{pace}"
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=1.0, completed=done or 0.0, pulse=done is None)
    to_go = f"{clock(state.remaining)} to go" if state.remaining else ""
    grid.add_row(bar, rough_share(done) if done is not None else "", words, to_go)
    return grid


def _cells(worker: WorkerState, epochs: int | None) -> list[str]:
    where = f"{worker.rank} {worker.machine}".strip()
    if worker.finished:
        where += f" ({worker.finished})"
    return [
        printable(where),
        f"{worker.epoch + 1}/{epochs}" if epochs else str(worker.epoch + 1),
        count(worker.rate),
        loss(worker.loss),
        rough_share(worker.waiting),
        UNKNOWN if worker.staleness is None else f"{worker.staleness:.1f}",
    ]


MOST_SHARES = 3
MOST_SWITCHES = 6
MOST_REFUSED = 5
_REST = "further {} are in the report"


class ChangeLines:
    """Lines about changes: the first few of each kind, then one line that there are more."""

    def __init__(self) -> None:
        self._told: Counter[str] = Counter()
        self._last = ""
        self._losses = LossOnce()

    def line(self, event: ev.Event) -> str | None:
        """Return the line to print about ``event``, if any."""
        told = words_on(event)
        if told is None or isinstance(event, ev.SamplesSettled):
            return told
        if isinstance(event, ev.WorkerLost):
            return told if self._losses.is_new(event) else None
        if isinstance(event, ev.Balanced) and event.refused is None:
            if told == self._last:
                return None
            self._last = told
        kind, most = _kind(event)
        self._told[kind] += 1
        return _few(told, kind, self._told[kind], most)


def _kind(event: ev.Event) -> tuple[str, int]:
    """Name a kind of changes, and say how many of it are told."""
    if isinstance(event, ev.StepRefused):
        return "skipped steps", MOST_REFUSED
    if isinstance(event, ev.Balanced):
        return ("shares" if event.refused is None else "trials of shares"), MOST_SHARES
    return "switches", MOST_SWITCHES


def _few(line: str, kind: str, number: int, most: int) -> str | None:
    if number == most + 1:
        return _REST.format(kind)
    return line if number <= most else None
