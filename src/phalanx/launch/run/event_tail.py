"""Passes the workers' events and output on to the observer."""

from __future__ import annotations

import time
from collections.abc import Collection

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import line_as_shown
from phalanx.launch.run.hangs import Hangs
from phalanx.launch.run.observer import Observer
from phalanx.observe.events.collect import EventTail, LineTail
from phalanx.observe.events.event_types import Event, Finished, Joined, WorkerLost
from phalanx.observe.events.figure_lines import is_figures

OWN_GAP = 4.0
"""Seconds between two polls that mean that this computer slept."""


class Relay:
    """Passes on the events of all ranks, and the output of the first rank."""

    def __init__(
        self, paths: RunPaths, ranks: list[int], observer: Observer, awaited: Collection[int] = ()
    ) -> None:
        """``awaited``: the ranks that have to join."""
        self.joined: set[int] = set()
        """The ranks that have joined the run."""
        self.finished: set[int] = set()
        """The ranks that have trained to the end, and have not begun another training since."""
        self.lost: set[int] = set()
        """The ranks without which the others go on."""
        self._first = ranks[0]
        self._events = EventTail(paths, ranks)
        self._output = LineTail(paths.log_of(self._first))
        self._observer = observer
        self._hangs = Hangs(paths, awaited=awaited)
        self._polled = time.monotonic()

    def poll(self, away: Collection[int] = ()) -> None:
        """Pass on what is new; ranks ``away`` with their machine are not reported as silent."""
        before, self._polled = self._polled, time.monotonic()
        if self._polled - before > OWN_GAP:
            self._hangs.slept(self._polled - before)
        self._hangs.excuse(away)
        self._pass_on(self._output.poll(), self._events.poll())
        for text in self._hangs.news():
            self._observer.alert(text)

    def stands_still(self) -> bool:
        return self._hangs.stands_still()

    def drain(self) -> None:
        """Pass on the rest, once the workers have ended."""
        self._pass_on(self._output.drain(), self._events.drain())

    def _pass_on(self, lines: list[bytes], events: list[Event]) -> None:
        for line in lines:
            if not is_figures(line):
                for shown in line_as_shown(line.decode("utf-8", errors="replace")):
                    self._observer.output(self._first, shown)
        for event in events:
            self._hangs.take(event)
            if isinstance(event, Joined):
                self.joined.add(event.rank)
                self.finished.discard(event.rank)  # a script may train more than once
            elif isinstance(event, WorkerLost):
                self.lost.add(event.worker)
            elif isinstance(event, Finished) and event.status == "done":
                self.finished.add(event.rank)
            self._observer.event(event)
