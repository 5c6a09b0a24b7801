"""Files that are written whole: a reader sees all of the new one, or still the old one."""

from __future__ import annotations

import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` in one step.

    A link in the place of ``path`` is replaced, never followed: a folder that came from somebody
    else cannot direct what is written elsewhere.
    """
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        # Only ever a new file, under a name that nobody could have put a link at.
        with scratch.open("xb") as file:
            file.write(data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
