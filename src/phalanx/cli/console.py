"""The one way to the terminal: whatever is printed, nothing in its text steers the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment

from phalanx.core.terminal import coloured


class CleanConsole(Console):
    """A console whose own control codes (for live displays) are the only ones."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        clean = [s if s.control else Segment(coloured(s.text), s.style) for s in buffer]
        return super()._render_buffer(clean)
