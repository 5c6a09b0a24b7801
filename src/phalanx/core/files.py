"""Files that are written whole: a reader sees all of the new one, or still the old one."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` in one step."""
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(path.name + ".part")
    scratch.write_bytes(data)
    scratch.replace(path)
