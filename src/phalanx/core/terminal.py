"""Text from scripts, machines and files, made safe for a terminal.

:func:`printable` removes control characters; :func:`coloured`, for a script's output, removes all
control codes except colours.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable
from typing import IO

Say = Callable[[str], None]
"""Shows the user a line."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters except tabs and line ends."""

_STEERING = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    # Strings to the terminal (title, clipboard, links): with their content, if they end.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[ -/]*[0-Z\\`-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_RESET = "\x1b[0m"
_RESETS = ("\x1b[m", _RESET)
_NOT_LETTERS = re.compile(r"[\W\d_]+")


def printable(text: str) -> str:
    """``text`` without control characters."""
    return _CONTROLS.sub("", text)


def wrapped(text: str, stream: IO[str]) -> str:
    """:func:`printable` sentences, broken between words if ``stream`` is a terminal."""
    if not stream.isatty():
        return printable(text)
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in printable(text).splitlines()
    )


def coloured(text: str) -> str:
    """Return ``text`` without control codes except its colours, which are reset at its end."""
    if text.isprintable():
        return text
    last = ""

    def kept(found: re.Match[str]) -> str:
        nonlocal last
        last = found["colour"] or last
        return found["colour"] or ""

    shown = _STEERING.sub(kept, text)
    if not last or last in _RESETS:
        return shown
    body = shown.rstrip("\n")
    return body + _RESET + shown[len(body) :]


def line_as_shown(line: str) -> list[str]:
    """Split a line at carriage returns; of a progress bar only the last state is kept.

    A terminal would overwrite, and so hide, the text before a carriage return. A part is left out
    only if it differs from the next one in digits and marks alone (a bar that moves).
    """
    parts = [part for part in line.rstrip("\r\n").split("\r") if part.strip()]
    if len(parts) < 2:
        return [coloured(part) for part in parts] or [""]
    letters = [_NOT_LETTERS.sub("", coloured(part)) for part in parts]
    kept = [
        part
        for part, own, following in zip(parts, letters, letters[1:], strict=False)
        if own and own != following
    ]
    return [coloured(part) for part in [*kept, parts[-1]]]
