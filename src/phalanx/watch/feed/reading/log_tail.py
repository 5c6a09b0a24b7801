"""The last lines that a worker printed, as plain text."""

from __future__ import annotations

import re

import msgspec

from phalanx.core.files import read_tail
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import line_as_shown

MOST_LINES = 2000
_BYTES_OF_LINE = 200
_LONGEST = 4000
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of the text around them."""


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    lines: list[str]
    bytes: int
    """The length of the whole log."""


def read_log(paths: RunPaths, rank: int, lines: int) -> LogTail:
    """Return at most ``lines`` of the newest lines of a worker; none if it has no log here."""
    file, count = paths.log_of(rank), min(max(lines, 1), MOST_LINES)
    try:
        inside = file.resolve().is_relative_to(paths.folder.resolve())
        length = file.stat().st_size if inside else 0
    except (OSError, RuntimeError):
        length = 0
    if not length:
        return LogTail(rank=rank, lines=[], bytes=0)
    text = read_tail(file, min(length, max(1 << 16, _BYTES_OF_LINE * count)))
    shown = [part for line in text.split("\n")[-count - 1 :] for part in line_as_shown(line)]
    shown = shown[:-1] if shown and not shown[-1] else shown
    return LogTail(rank=rank, lines=[visible(line) for line in shown[-count:]], bytes=length)


def visible(text: str) -> str:
    """Return ``text`` without colours, and with its control characters as visible ones."""
    return _HIDDEN.sub(_picture, _COLOUR.sub("", text))[:_LONGEST]


def _picture(found: re.Match[str]) -> str:
    number = ord(found[0])
    return chr(0x2400 + number) if number < 0x20 else "\u2421" if number == 0x7F else "\ufffd"
