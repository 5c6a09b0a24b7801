"""Text from files that others may have written, made fit for a terminal."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All that can steer a terminal; tabs and line ends stay."""


def printable(text: str) -> str:
    """``text`` without control characters."""
    return _CONTROLS.sub("", text)
