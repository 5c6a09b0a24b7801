"""What a script that we did not run ourselves said at its end: the last traceback of its log."""

from __future__ import annotations

import re
from pathlib import Path

from phalanx.core.files import read_tail

_LOOKED_AT = 1 << 16  # bytes at the end of the log
_BEGINS = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before every line


def last_words(log: Path) -> list[str]:
    """The lines of the last traceback, without what other threads printed after it."""
    lines = [_RANK.sub("", line) for line in read_tail(log, _LOOKED_AT).splitlines()]
    begins = [index for index, line in enumerate(lines) if line.rstrip().endswith(_BEGINS)]
    if not begins:
        return []
    told = [_BEGINS]
    for line in lines[begins[-1] + 1 :]:
        told.append(line)
        if line and not line[0].isspace():
            break  # the exception itself stands at the margin
    return told
