"""The files of a training script: itself, and the modules beside it that it imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phalanx.core.script_imports import imported_files, parse

MOST_FILES = 500


def script_files(script: Path) -> list[Path]:
    """``script`` and every local module it leads to, found without running anything."""
    root = script.resolve().parent
    found: dict[Path, None] = {}
    waiting = [script.resolve()]
    while waiting and len(found) < MOST_FILES:
        file = waiting.pop()
        if file not in found:
            found[file] = None
            waiting.extend(_local(file, root))
    return sorted(found)


def _local(file: Path, root: Path) -> Iterator[Path]:
    """The files under ``root`` that ``file`` imports; one that cannot be read imports nothing."""
    try:
        tree = parse(file.read_bytes())
    except OSError:
        return
    if tree is not None:
        # A link that leads out of the script's folder is not the script's own.
        yield from (f for f in imported_files(tree, file, [root]) if f.is_relative_to(root))
