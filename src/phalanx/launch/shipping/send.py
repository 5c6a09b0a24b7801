"""Sends a manifest's files to a machine: only missing ones, each from where it was interrupted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phalanx.core import words
from phalanx.core.errors import InputError, MachineError
from phalanx.launch.link.agent_link import AgentLink
from phalanx.launch.shipping.listing import FileEntry
from phalanx.launch.shipping.manifest import FileManifest

T = TypeVar("T")
PIECE = 1 << 20
WINDOW = 8 << 20
FIRST_WINDOW = 256 << 10
WINDOW_SECONDS = 0.5
"""Seconds of sending in one window. The machine confirms each window while the next one is sent;
more bytes under way would delay pings on a slow line."""
ANSWER_SECONDS = 120.0
SLOWEST_FILE, SLOWEST_DISK = 0.02, 2e6
"""Seconds for each file, and bytes a second, of the slowest disk worth training from: a machine is
silent while it checks and copies files, and gets the time that such a disk takes."""
ATTEMPTS = 2

Progress = Callable[[int, int, str], None]
"""Called with the bytes that have arrived, those to send in all, and the machine's name."""


class Have(msgspec.Struct):
    """What a machine has of a manifest, and what it lacks."""

    ready: str | None = None
    manifest_offset: int | None = None
    missing: list[tuple[int, int]] = []
    next: int | None = None


def read_answer(link: AgentLink, answer: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError:
        raise answers_wrongly(link) from None


def answers_wrongly(link: AgentLink) -> MachineError:
    return MachineError(f"the agent on {link.machine.name} sent an invalid answer", "Try again.")


def ignore_progress(done: int, total: int, machine: str) -> None:
    """Do nothing; for callers that show no progress."""


async def ship(
    link: AgentLink,
    manifest: FileManifest,
    source_root: Path,
    kind: str,
    progress: Progress = ignore_progress,
) -> str:
    """Send what is missing of ``manifest``; return the path of the folder made of it there."""
    shipment = Shipment(link, manifest, source_root, kind, progress)
    for _ in range(ATTEMPTS):
        found = await shipment.ask_what_is_missing()
        if found.ready is not None:
            return found.ready
        if not found.missing:
            break
        await shipment.send(found.missing)
    else:
        found = await shipment.ask_what_is_missing()
        if found.missing:
            raise shipment.garbled(found.missing[0][0])
    return await shipment.lay_out()


class Shipment:
    """Brings the files of one manifest to one machine."""

    def __init__(
        self, link: AgentLink, manifest: FileManifest, root: Path, kind: str, progress: Progress
    ) -> None:
        self._link, self._manifest, self._root, self._kind = link, manifest, root, kind
        self._progress = progress
        self._size = sum(entry.size for entry in manifest.entries)
        self._what = f"{words.size(self._size)} of {kind}"

    async def ask_what_is_missing(self) -> Have:
        """Send the manifest if the machine lacks it; return all that is missing, as one page."""
        found = await self._have(0)
        for _ in range(ATTEMPTS):
            if found.manifest_offset is None:
                break
            await self._send_manifest(found.manifest_offset)
            found = await self._have(0)
        if found.manifest_offset is not None:
            raise answers_wrongly(self._link)
        page = found
        at = 0
        while page.next is not None:
            if not at < page.next < len(self._manifest.entries):  # or this loop might never end
                raise answers_wrongly(self._link)
            at = page.next
            page = await self._have(at)
            found.missing += page.missing
        return found

    async def send(self, missing: Sequence[tuple[int, int]]) -> None:
        """Send these entries, each from its offset, and wait until their checksums are compared."""
        todo = [(self._manifest.entries[number], offset) for number, offset in missing]
        total, done = sum(entry.size - offset for entry, offset in todo), 0
        name = self._link.machine.name
        self._progress(0, total, name)
        async with SendWindow(self._link, f"{words.size(total)} of {self._kind}") as window:
            for entry, offset in todo:
                async for at, piece in _pieces(self._root / entry.path, entry, offset, window):
                    last = at + len(piece) >= entry.size
                    await self._send_piece(entry.sha256, at, last, piece)
                    done += len(piece)
                    if await window.passed(len(piece)):
                        self._progress(window.arrived, total, name)
        self._progress(total, total, name)

    async def lay_out(self) -> str:
        answer = await self._ask("lay_out", "unpacking")
        return read_answer(self._link, answer.get("path"), str)

    def garbled(self, number: int) -> MachineError:
        path = self._root / self._manifest.entries[number].path
        return MachineError(
            f"{path} arrived at {self._link.machine.name} with another checksum than it has here",
            "If it changed while it was sent, start again.",
        )

    async def _ask(self, name: str, doing: str, **fields: Any) -> dict[str, Any]:
        return await self._link.ask(
            name, timeout=ANSWER_SECONDS
            + len(self._manifest.entries) * SLOWEST_FILE
            + self._size / SLOWEST_DISK,
            doing=lambda: f"{doing} {self._what}", kind=self._kind,
            manifest=self._manifest.digest, **fields,
        )  # fmt: skip

    async def _have(self, first: int) -> Have:
        answer = await self._ask("have", "checking", size=len(self._manifest.content), first=first)
        found = read_answer(self._link, answer, Have)
        entries = self._manifest.entries
        if all(0 <= n < len(entries) and 0 <= at <= entries[n].size for n, at in found.missing):
            return found
        raise answers_wrongly(self._link)

    async def _send_manifest(self, offset: int) -> None:
        content, digest = self._manifest.content, self._manifest.digest
        if not 0 <= offset <= len(content):
            raise answers_wrongly(self._link)
        async with SendWindow(self._link, "a list of files") as window:
            while True:
                piece = content[offset : offset + window.piece]
                last = offset + len(piece) >= len(content)
                await self._send_piece(digest, offset, last, piece)
                await window.passed(len(piece))
                offset += len(piece)
                if last:
                    break

    async def _send_piece(self, digest: str, offset: int, last: bool, piece: bytes) -> None:
        header = {"ask": "blob", "digest": digest, "offset": offset, "last": last}
        await self._link.send(header, piece)


class SendWindow:
    """Limits the bytes under way, so that a machine's errors (a full disk) are noticed soon."""

    def __init__(self, link: AgentLink, what: str) -> None:
        self._link, self._what = link, what
        self.arrived = 0
        """Bytes that are known to have arrived."""
        self._sent = self._asked_at = 0
        self._size = min(FIRST_WINDOW, WINDOW)
        self._since = time.monotonic()
        self._asked: asyncio.Task[Any] | None = None

    @property
    def piece(self) -> int:
        """Bytes to send at once."""
        return min(PIECE, self._size)

    async def passed(self, count: int) -> bool:
        """Count bytes that were sent; return whether more are now known to have arrived."""
        self._sent += count
        if self._sent - self._asked_at < self._size:
            return False
        known = await self._answer()
        if known:
            self._adapt(self._asked_at)
        self._asked, self._asked_at = asyncio.create_task(self._ask()), self._sent
        return known

    async def _ask(self) -> None:
        doing = f"copying {self._what}"
        await self._link.ask("stored", timeout=ANSWER_SECONDS, doing=lambda: doing)

    def _adapt(self, arrived: int) -> None:
        """Set the size to the bytes that arrive in ``WINDOW_SECONDS`` at the last window's rate."""
        now = time.monotonic()
        rate = (arrived - self.arrived) / max(now - self._since, 1e-6)
        # At most double it, because one fast answer may be luck.
        wanted = min(int(rate * WINDOW_SECONDS), 2 * self._size, WINDOW)
        self._size = max(wanted, min(FIRST_WINDOW, WINDOW) // 4)
        self.arrived, self._since = arrived, now

    async def __aenter__(self) -> SendWindow:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Wait until everything has arrived and is checked, unless something went wrong."""
        if kind is None:
            await self._answer()
            await self._ask()
        elif self._asked is not None:
            self._asked.cancel()
            await asyncio.gather(self._asked, return_exceptions=True)

    async def _answer(self) -> bool:
        asked, self._asked = self._asked, None
        if asked is None:
            return False
        await asked
        return True


async def _pieces(
    path: Path, entry: FileEntry, offset: int, window: SendWindow
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the file's content from ``offset`` in pieces; one empty piece for an empty file."""
    try:
        with await asyncio.to_thread(path.open, "rb", 0) as file:
            file.seek(offset)
            while True:
                piece = await asyncio.to_thread(file.read, min(window.piece, entry.size - offset))
                if not piece and offset < entry.size:
                    raise InputError(
                        f"{path} became shorter while it was sent", "Start again once it is final."
                    )
                yield offset, piece
                offset += len(piece)
                if offset >= entry.size:
                    return
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", "Make it readable, then start again."
        ) from None
