"""The console that all output uses: no control code in printed text reaches the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment

from phalanx.core.terminal import coloured


class CleanConsole(Console):
    """A console that removes control codes from text except colours, and keeps its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        clean = [s if s.control else Segment(coloured(s.text), s.style) for s in buffer]
        return super()._render_buffer(clean)
