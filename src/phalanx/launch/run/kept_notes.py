"""Writes down what the controller says while a run goes on, for whoever looks at it later."""

from __future__ import annotations

import time

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import Launch
from phalanx.launch.run.observer import Observer
from phalanx.launch.run.open_run_folder import append_to_log
from phalanx.observe.events.event_types import Event
from phalanx.observe.events.notes import ALERT, NOTE, Note, encode_note
from phalanx.observe.summary.summary import Summary


class KeptNotes(Observer):
    """Passes everything on to another observer, and appends notes to ``notes.jsonl``.

    Nothing is written before the run is: a folder without files is removed if nothing starts. A
    disk that is full loses lines, and nothing else.
    """

    def __init__(self, paths: RunPaths, observer: Observer) -> None:
        self._paths, self._observer = paths, observer
        self._open = paths.launch.exists()
        self._waiting: list[str] = []

    def started(self, launch: Launch) -> None:
        self._open = True
        append_to_log(self._paths.notes, self._waiting)
        self._waiting = []
        self._observer.started(launch)

    def note(self, text: str) -> None:
        self._keep(text, NOTE)
        self._observer.note(text)

    def alert(self, text: str, kind: str = ALERT) -> None:
        self._keep(text, kind)
        self._observer.alert(text, kind)

    def event(self, event: Event) -> None:
        self._observer.event(event)

    def output(self, rank: int, line: str) -> None:
        self._observer.output(rank, line)

    def failure(self, rank: int, line: str) -> None:
        self._observer.failure(rank, line)

    def has_seen_enough(self) -> bool:
        return self._observer.has_seen_enough()

    def finished(self, summary: Summary) -> None:
        self._observer.finished(summary)

    def _keep(self, text: str, kind: str) -> None:
        line = encode_note(Note(time=time.time(), text=text, kind=kind))
        if self._open:
            append_to_log(self._paths.notes, [line])
        else:
            self._waiting.append(line)
