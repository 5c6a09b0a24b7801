"""What the controller says during a run, one JSON object a line (``notes.jsonl``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

NOTE = "note"
"""What is being done: connecting, copying, fetching."""
FAULT = "fault"
"""News of a machine: lost, away, connected again, a job that waits."""
ALERT = "alert"
"""Somebody has to look: a worker hangs, a disk is full."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    time: float
    """Seconds of the wall clock of the controller's computer."""
    text: str
    kind: str = NOTE


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Note)


def encode_note(note: Note) -> str:
    """One line, without its newline."""
    return _encoder.encode(note).decode()


def decode_notes(lines: Iterable[bytes]) -> Iterator[Note]:
    """Yield the notes of ``lines``; damaged ones are left out."""
    for line in lines:
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            continue
