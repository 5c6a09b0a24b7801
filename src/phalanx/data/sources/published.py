"""Files in their published form: found, fetched when missing, and proved to be the right ones.

Checksums are of the decompressed data, because every mirror compresses in its own way. What has
been proved once is noted in ``.checked`` with the file's size and time, so that later loads only
read.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.script.datasets import UNCHECKED_VARIABLE, locate, unchecked
from phalanx.data.fetch import replace_with

Split = tuple[Tensor, Tensor]
MARKER = ".checked"
# No published file is larger; a damaged or hostile archive must not fill the memory.
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Published:
    """One file of a data set, decompressed: its name, its size, and its SHA-256 where known."""

    name: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class Read:
    """What a file held."""

    path: Path
    data: bytes
    sha256: str


def read_all(
    folder: Path, files: list[Published], fetch: Callable[[list[Published]], None]
) -> dict[str, Read]:
    """The contents of ``files`` by name; ``fetch`` is asked for those that are missing."""
    missing = [file for file in files if locate(folder, file.name) is None]
    if missing:
        fetch(missing)
    return {file.name: read(folder, file) for file in files}


def read(folder: Path, file: Published) -> Read:
    """Read one file, decompress it and prove that it is the published one."""
    path = locate(folder, file.name)
    if path is None:
        raise InputError(f"{folder / file.name} is missing", "Put the original file there.")
    data = decompress(path)
    if not unchecked() and len(data) != file.size:
        raise damaged(path, f"it holds {len(data):,} bytes, not {file.size:,}")
    known = None if unchecked() else _noted(path)
    checksum = known or hashlib.sha256(data).hexdigest()
    if not unchecked() and file.sha256 not in (None, checksum):
        raise damaged(path, "its checksum is not the published one")
    if known is None and not unchecked():
        _note(path, checksum)
    return Read(path, data, checksum)


def decompress(path: Path) -> bytes:
    """The bytes of a plain or gzipped file, whatever its name says."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not zipped:
                data = raw.read(MOST_BYTES + 1)
            else:
                with gzip.open(raw) as unzipped:
                    data = unzipped.read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, str(error)) from error
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", "Check its permissions."
        ) from error
    if len(data) > MOST_BYTES:
        raise damaged(path, "it is larger than any published file")
    return data


def damaged(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not the published file: {why}",
        f"Delete it; it is then downloaded again ({UNCHECKED_VARIABLE}=1 accepts other files).",
    )


def _noted(path: Path) -> str | None:
    """The checksum noted for ``path``, unless the file changed since."""
    try:
        notes = json.loads((path.parent / MARKER).read_text())
        size, changed, checksum = notes[path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    state = path.stat()
    same = (size, changed) == (state.st_size, state.st_mtime_ns)
    return checksum if same and isinstance(checksum, str) else None


def _note(path: Path, checksum: str) -> None:
    """Remember a checksum. Two workers at once may lose a note, which only costs a check."""
    marker = path.parent / MARKER
    try:
        notes = json.loads(marker.read_text())
    except (OSError, ValueError):
        notes = {}
    state = path.stat()
    entries = notes if isinstance(notes, dict) else {}
    entries[path.name] = [state.st_size, state.st_mtime_ns, checksum]
    try:
        with replace_with(marker) as file:
            file.write(json.dumps(entries, indent=1).encode())
    except OSError:
        return  # A read-only folder is checked each time.
