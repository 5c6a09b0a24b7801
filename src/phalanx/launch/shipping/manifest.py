"""A list of files with their checksums, from which a machine makes a folder.

Checksums are remembered: a file is read again only when it has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.files import cache_home, write_whole
from phalanx.launch.shipping.listing import FileEntry


class FileManifest(msgspec.Struct, frozen=True, dict=True):
    """The entries in the order of their paths; equal manifests have equal digests."""

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


SETTLED_NS = 2_000_000_000
"""Nanoseconds: a file changed more recently may change again without getting another time."""

Known = dict[str, tuple[int, int, int, str]]
"""What is known of each file, by path: size, time of the last change, inode, checksum."""


def make_manifest(root: Path, files: Sequence[FileEntry]) -> FileManifest:
    """Make the manifest of files below ``root``."""
    memory = cache_home() / "hashes" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()}.json"
    before = _read(memory)
    now: Known = {}
    entries = []
    for file in files:
        if not file.link and not file.folder:
            digest = _known_or_read(root / file.path, file.path, before, now)
            file = msgspec.structs.replace(file, sha256=digest)
        entries.append(file)
    if now != before:
        with contextlib.suppress(OSError):  # the checksums only make the next run faster
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_whole(memory, msgspec.json.encode(now))
    return FileManifest(tuple(sorted(entries, key=lambda entry: entry.path)))


def _read(memory: Path) -> Known:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=Known)
    except (OSError, msgspec.DecodeError):
        return {}


def _known_or_read(source: Path, path: str, before: Known, now: Known) -> str:
    try:
        status = source.stat()
        mark = (status.st_size, status.st_mtime_ns, status.st_ino)
        held = before.get(path)
        if held is not None and held[:3] == mark:
            now[path] = held
            return held[3]
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            f"cannot read {source}: {error.strerror}",
            "Make it readable, or exclude it: it would be sent to the machines.",
        ) from None
    if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
        now[path] = (*mark, digest)
    return digest
