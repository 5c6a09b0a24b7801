"""Names of files that came over the wire: always inside a folder of ours."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from phalanx.agent.frames import Problem

MOST_NAME = 4096


def inside(folder: Path, name: str) -> Path:
    """``folder / name``, where ``name`` is relative and never leads up or out."""
    parts = PurePosixPath(name).parts
    plain = name and len(name) <= MOST_NAME and "\0" not in name and "\\" not in name
    if not plain or name.startswith("/") or not parts or ".." in parts:
        raise Problem(f"not a name of a file: {name[:100]!r}")
    return folder.joinpath(*parts)


def is_run(name: str) -> bool:
    """Whether this can be the id of a run: one plain part of a path."""
    return 0 < len(name) <= 255 and name[0] != "." and "/" not in name and name.isprintable()
