"""``sys.stdout`` and ``sys.stderr`` for workers that are threads: each writes to its own log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, cast


class RankStreams:
    """Redirects the output of threads that were assigned a file; others write as before."""

    def __init__(self) -> None:
        self._files = threading.local()
        self._before: tuple[TextIO, TextIO] | None = None

    def install(self) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout = cast(TextIO, _Router(self._current, sys.stdout))
        sys.stderr = cast(TextIO, _Router(self._current, sys.stderr))

    def remove(self) -> None:
        if self._before is not None:
            sys.stdout, sys.stderr = self._before
            self._before = None

    def assign(self, file: TextIO) -> None:
        """What the calling thread prints from now on goes to ``file``."""
        self._files.file = file

    def _current(self) -> TextIO | None:
        return getattr(self._files, "file", None)


class _Router:
    """A text stream that is another one for each thread."""

    def __init__(self, current: Callable[[], TextIO | None], default: TextIO) -> None:
        self._current = current
        self._default = default

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current() or self._default, name)
