"""What happened during a run, as marks of its charts: from events, and from what was said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from phalanx.observe.events import event_types as ev
from phalanx.observe.events.change_words import LossOnce, words_on
from phalanx.observe.events.notes import ALERT, FAULT, NOTE, Note
from phalanx.observe.events.timeline import RankLog
from phalanx.watch.feed.run_view import Mark

MOST = 400
"""The newest marks are kept."""
_LONGEST = 300
_KINDS: dict[type[ev.Event], str] = {
    ev.Switched: "switch",
    ev.Balanced: "share",
    ev.StepRefused: ALERT,
    ev.WorkerLost: FAULT,
    ev.SamplesSettled: FAULT,
    ev.Saved: "checkpoint",
    ev.Finished: FAULT,
}


Place = Callable[[float], tuple[float | None, float | None]]
"""Tells the step and the epoch that a run had come to after some seconds."""


def marks_of(
    logs: Sequence[RankLog], notes: Iterable[Note], began: float, wall: float, place: Place
) -> list[Mark]:
    """Return the newest marks, in the order of time.

    ``began``: time 0 of the run on the events' clock; ``wall``: the same in seconds since 1970.
    """
    found = [*_of_events(logs, began, place), *_of_notes(notes, wall, place)]
    return sorted(found, key=lambda mark: mark.time)[-MOST:]


def _of_notes(notes: Iterable[Note], wall: float, place: Place) -> Iterator[Mark]:
    for note in notes:
        time = note.time - wall
        step, epoch = place(time)
        kind = note.kind if note.kind in (ALERT, FAULT) else NOTE
        yield Mark(time=time, kind=kind, text=note.text[:_LONGEST], step=step, epoch=epoch)


def _of_events(logs: Sequence[RankLog], began: float, place: Place) -> Iterator[Mark]:
    last, losses = "", LossOnce()
    for event in sorted(_telling(logs), key=lambda event: event.time)[-MOST:]:
        text = _words(event)
        if text is None or (isinstance(event, ev.WorkerLost) and not losses.is_new(event)):
            continue
        if isinstance(event, ev.Balanced):  # every worker writes it
            if text == last:
                continue
            last = text
        step, epoch = place(event.time - began)
        yield Mark(
            time=event.time - began,
            kind=_KINDS[type(event)],
            text=text[:_LONGEST],
            rank=event.rank,
            step=float(event.step) if isinstance(event, ev.StepRefused) else step,
            epoch=event.at_epoch if isinstance(event, ev.Switched) else epoch,
        )


Telling = (
    ev.Switched
    | ev.Balanced
    | ev.StepRefused
    | ev.WorkerLost
    | ev.SamplesSettled
    | ev.Saved
    | ev.Finished
)


def _telling(logs: Sequence[RankLog]) -> Iterator[Telling]:
    """Yield events that may be worth a mark; of those that all workers write, one worker's."""
    yield from next((log.switches for log in logs if log.switches), [])
    for log in logs:
        yield from log.balanced
        yield from log.taken_back
        yield from log.refused
        yield from log.lost
        yield from log.settled
        yield from log.saved
        if log.finished is not None and log.finished.status not in ("done", "stopped"):
            yield log.finished


def _words(event: Telling) -> str | None:
    if isinstance(event, ev.Saved):
        folder, _, name = event.path.rpartition("/")
        return f"checkpoint {name}" if folder == "checkpoints" else None
    if isinstance(event, ev.Finished):
        return f"worker {event.rank} {event.status}"
    return words_on(event)
