"""Keeps the script of a run with the run: what is bundled later is what ran."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.script_imports import script_files


def keep_source(script: Path, paths: RunPaths) -> None:
    """Copy ``script`` and the modules beside it that it imports into the run's folder."""
    root = script.resolve().parent
    for file in script_files(script):
        copy = paths.source / file.relative_to(root)
        # A module that cannot be copied is the bundle's loss, not the training's.
        with suppress(OSError):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
