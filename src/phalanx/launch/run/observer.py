"""The interface of a run's observer: the progress display, or a test."""

from __future__ import annotations

from phalanx.launch.launcher import Launch
from phalanx.observe.events.event_types import Event
from phalanx.observe.events.notes import ALERT
from phalanx.observe.summary.summary import Summary


class Observer:
    """Callbacks for what happens, in the controller's thread; each does nothing by default."""

    def started(self, launch: Launch) -> None:
        """The workers are about to start."""

    def note(self, text: str) -> None:
        """The launcher says what it does: it connects, copies, or has lost a machine."""

    def alert(self, text: str, kind: str = ALERT) -> None:
        """Something is wrong, such as a worker that hangs; said like a note."""
        self.note(text)

    def event(self, event: Event) -> None:
        """A worker wrote an event."""

    def output(self, rank: int, line: str) -> None:
        """A line of rank 0's output."""

    def failure(self, rank: int, line: str) -> None:
        """A line of the traceback of the rank that failed."""

    def has_seen_enough(self) -> bool:
        """Whether to stop the run now, in order, which does not count as a failure."""
        return False

    def finished(self, summary: Summary) -> None:
        """Everything has ended and the summary is written."""
