"""File contents (blobs) that are sent once and kept by checksum: ``blobs/ab/<sha256>``.

A blob is written to ``….part`` and renamed once its checksum is right. An interrupted transfer
continues from the ``.part`` file that it left.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem
from phalanx.agent.machine.facts import disk_free
from phalanx.agent.ownership import PIECE, content_is

SPARE = 1.05
"""Bytes of disk that have to be free for each byte that is needed."""
MORE_SPACE = "Free space there, or set 'folder' in the blueprint to a folder on another disk."
_DIGEST = re.compile(r"[0-9a-f]{64}")


def checked_digest(value: Any) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise RequestProblem("invalid SHA-256 in request")
    return value


def size_words(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


class _Incoming:
    """A blob that is arriving, and the checksum of what has arrived."""

    def __init__(self, digest: str, path: Path, file: BinaryIO, offset: int, so_far: Any) -> None:
        self.digest, self.path, self.file = digest, path, file
        self.offset, self.so_far = offset, so_far


class BlobStore:
    """The blobs of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.received = 0
        self._incoming: _Incoming | None = None
        self.trouble: OSError | None = None
        """An error of writing, kept until the sender asks for it."""
        self._begun: dict[str, tuple[int, Any]] = {}
        """The length of parts that were looked at, and the checksums so far."""
        self._manifest: tuple[str, list[dict[str, Any]]] = ("", [])
        self._checked: set[str] = set()
        """Blobs whose content this process has compared with their names."""

    def path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest

    def part(self, digest: str) -> Path:
        return self.folder / digest[:2] / (digest + ".part")

    def has(self, digest: str, size: int) -> bool:
        """Whether the whole blob is here; if it is, its age for ``remove_unused`` begins anew."""
        path = self.path(digest)
        try:
            if path.lstat().st_size != size or not self.is_right(digest):
                path.unlink()
                return False
            os.utime(path)
        except OSError:
            return False
        return True

    def is_right(self, digest: str) -> bool:
        """Whether the blob is what its name says, and no other user can have put it there."""
        if digest not in self._checked:
            if not content_is(self.path(digest), digest):
                return False
            self._checked.add(digest)
        return True

    def offset(self, digest: str, size: int) -> int:
        """The offset from which a missing blob has to be sent: the size of its part."""
        held, so_far = 0, hashlib.sha256()
        try:
            with self.part(digest).open("rb", buffering=0) as file:
                while piece := file.read(PIECE):
                    held += len(piece)
                    so_far.update(piece)
        except OSError:
            return 0
        if held > size:
            return 0
        self._begun[digest] = held, so_far
        return held

    def receive(self, digest: str, offset: int, last: bool, piece: bytes) -> None:
        """Write a piece; an error is kept until the sender asks for it."""
        if self.trouble is not None:
            return
        try:
            self._write(digest, offset, last, piece)
        except OSError as error:
            self.drop_incoming()
            self.trouble = error

    def manifest(self, digest: str) -> list[dict[str, Any]] | None:
        """The entries of a manifest that is itself a blob; ``None`` when it is not here."""
        if self._manifest[0] != digest:
            path = self.path(digest)
            try:
                if not self.is_right(digest):
                    return None
                entries = json.loads(path.read_bytes())["entries"]
                os.utime(path)
            except OSError:
                return None
            self._manifest = (digest, entries)
        return self._manifest[1]

    def _write(self, digest: str, offset: int, last: bool, piece: bytes) -> None:
        incoming = self._incoming
        if incoming is None or incoming.digest != digest:
            self.drop_incoming()
            incoming = self._incoming = self._open(digest)
        if offset != incoming.offset:
            # The part begins anew, and a piece from its middle is dropped: no file gets a hole.
            incoming.file.truncate(0)
            incoming.offset, incoming.so_far = 0, hashlib.sha256()
            if offset:
                return
        incoming.file.seek(offset)
        incoming.file.write(piece)
        incoming.offset += len(piece)
        incoming.so_far.update(piece)
        self.received += len(piece)
        if last:
            self._incoming = None
            self._finish(incoming)

    def _open(self, digest: str) -> _Incoming:
        path = self.part(digest)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = _open_part(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another run is receiving this blob too: each has a part of its own
            file.close()
            path = path.with_name(f"{digest}.{os.getpid()}.part")
            file = _open_part(path)
        held, so_far = self._begun.pop(digest, (0, hashlib.sha256()))
        if file.seek(0, os.SEEK_END) != held:
            file.truncate(0)
            held, so_far = 0, hashlib.sha256()
        return _Incoming(digest, path, file, held, so_far)

    def drop_incoming(self) -> None:
        """Stop receiving the current blob; its part stays, to be continued later."""
        if self._incoming is not None:
            self._incoming.file.close()
            self._incoming = None

    def _finish(self, incoming: _Incoming) -> None:
        """Rename the part if its checksum is right, or discard it: then the blob stays missing."""
        with incoming.file as file:
            if incoming.so_far.hexdigest() != incoming.digest:
                incoming.path.unlink()
                return
            os.fchmod(file.fileno(), 0o444)
            incoming.path.replace(self.path(incoming.digest))
            self._checked.add(incoming.digest)


def _open_part(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)


_stores: dict[str, BlobStore] = {}


def store_of(agent: Agent) -> BlobStore:
    return _stores.setdefault(str(agent.folder), BlobStore(Path(agent.folder) / "blobs"))


def missing_blobs(
    store: BlobStore, entries: list[dict[str, Any]], first: int = 0
) -> Iterator[tuple[int, int]]:
    """For each missing blob, its first entry's number and the offset to send it from."""
    seen = set()
    for number, entry in enumerate(entries):
        digest = entry["sha256"]
        if not digest or digest in seen:
            continue
        seen.add(digest)
        if number >= first and not store.has(digest, entry["size"]):
            yield number, store.offset(digest, entry["size"])


def check_space(agent: Agent, needed: float) -> None:
    """Refuse a transfer that would not fit on the disk."""
    free = disk_free(agent.folder)
    if free is not None and needed and free < needed * SPARE:
        raise RequestProblem(
            f"{size_words(free)} are free in {agent.folder}, but {size_words(needed)} are needed",
            MORE_SPACE,
        )


def unwritable(agent: Agent, error: OSError) -> RequestProblem:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = disk_free(agent.folder) or 0
        return RequestProblem(
            f"no space is left in {agent.folder} ({size_words(free)} free)", MORE_SPACE
        )
    return RequestProblem(
        f"cannot write in {agent.folder}: {error.strerror or error}",
        "Check its permissions, or set another 'folder' in the blueprint.",
    )


def blob(agent: Agent, request: dict[str, Any], payload: bytes) -> None:
    """Receive a piece of a blob; this request has no answer."""
    store = store_of(agent)
    digest = checked_digest(request["digest"])
    store.receive(digest, int(request["offset"]), bool(request.get("last")), payload)


def stored(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Report how many bytes have arrived, and are checked."""
    store = store_of(agent)
    if store.trouble is not None:
        raise unwritable(agent, store.trouble)
    return {"received": store.received}
