"""Samples of a detached run, kept on the machine for the controller that comes back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "samples.jsonl"
MOST = 16 << 20
"""Bytes; then the older half goes. A run without a controller gets there in about a year (see
``sampling.pause``), and of one that is looked at the older half has been at home for hours."""
LONGEST_LINE = 1 << 12
_ADD = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


class KeptSamples:
    """One file in the run's folder, a sample a line; what cannot be written is not kept."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            os.close(os.open(str(self._path), _ADD | os.O_CREAT, 0o600))

    def add(self, sample: dict[str, Any]) -> None:
        """Not where the file is gone: then the run was cleaned up, and stays so."""
        line = json.dumps(sample, allow_nan=False).encode() + b"\n"
        with contextlib.suppress(OSError):
            with os.fdopen(os.open(str(self._path), _ADD), "ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if file.write(line) != len(line):  # the disk is full: half a line spoils the next
                    file.truncate(size)
            if size > MOST:
                self._drop_older_half()

    def later(self, after: float) -> Iterator[dict[str, Any]]:
        """Those after a moment, in order."""
        try:
            descriptor = os.open(str(self._path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        with os.fdopen(descriptor, "rb") as file:
            for line in iter(lambda: file.readline(LONGEST_LINE), b""):
                sample = _read(line)
                if sample is not None and sample["time"] > after:
                    yield sample

    def _drop_older_half(self) -> None:
        new = self._path.with_suffix(".new")
        with self._path.open("rb") as old, new.open("wb") as file:
            old.seek(MOST // 2)
            old.readline()
            shutil.copyfileobj(old, file)
        new.replace(self._path)


def _read(line: bytes) -> dict[str, Any] | None:
    """``None``: no sample."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("time"), float) else None
