"""Names of files that came over the wire: always inside a folder of ours."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from phalanx.agent.frames import Problem

MOST_NAME = 4096


def inside(folder: Path, name: Any) -> Path:
    """``folder / name``, where ``name`` is relative and never leads up or out."""
    plain = isinstance(name, str) and len(name) <= MOST_NAME and "\0" not in name
    parts = PurePosixPath(name).parts if plain else ()
    if not parts or parts[0].startswith("/") or ".." in parts:
        raise Problem(f"a name leads elsewhere: {str(name)[:100]!r}")
    return folder.joinpath(*parts)


def is_run(name: str) -> bool:
    """Whether this can be the id of a run: one plain part of a path."""
    return 0 < len(name) <= 255 and name[0] != "." and "/" not in name and name.isprintable()
