"""A list of files with their checksums: what a folder on a machine is laid out from."""

from __future__ import annotations

import hashlib
from functools import cached_property

import msgspec


class FileEntry(msgspec.Struct, frozen=True):
    """A file, a link or an empty folder; ``path`` is relative, with slashes."""

    path: str
    size: int = 0
    sha256: str = ""
    executable: bool = False
    link: str = ""
    folder: bool = False


class FileManifest(msgspec.Struct, frozen=True, dict=True):
    """The entries in the order of their paths; two that are equal have one digest."""

    entries: tuple[FileEntry, ...]

    @cached_property
    def content(self) -> bytes:
        return msgspec.json.encode(self)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)
