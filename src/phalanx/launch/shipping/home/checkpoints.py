"""Fetches checkpoints while the run goes on, so that each is here whole or not at all.

Nothing that a machine says is trusted: a checkpoint is given its name only when every file that
its manifest lists has come, with the checksum that the manifest gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.link.agent_loss import ConnectionLost
from phalanx.launch.link.event_loop import in_thread
from phalanx.launch.shipping.home.incoming import Incoming, Received

NAME = re.compile(r"[0-9]{6,15}")
PREFIX = "checkpoints/"
LAST_SECONDS = 300.0
BETWEEN = 2.0
"""Seconds between two fetches: epochs of a tenth of a second would keep the agent busy."""
_MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 64 << 20

Fetch = Callable[[Incoming, str], Awaitable[dict[str, Any]]]
"""Lets a machine send the checkpoint of that name, and returns its answer."""


class _Record(msgspec.Struct):
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct):
    files: dict[str, _Record]


class CheckpointDownload:
    """Fetches the newest checkpoint of one machine, again and again."""

    def __init__(
        self, machine: str, paths: RunPaths, fetch: Fetch, say: Callable[[str], None]
    ) -> None:
        self._machine, self._paths, self._fetch, self._say = machine, paths, fetch, say
        self._wanted = self._tried = self._problem = ""
        self._task: asyncio.Task[None] | None = None
        self._finishing = asyncio.Event()

    def hear(self, name: str) -> None:
        """Note that the machine has finished a checkpoint."""
        if NAME.fullmatch(name):
            self._wanted = name
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._bring_all())

    async def finish(self) -> None:
        """Wait for the checkpoint that is on its way; two answers at once would be mixed up."""
        self._finishing.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_SECONDS)

    async def _bring_all(self) -> None:
        while self._tried != self._wanted:
            name = self._tried = self._wanted
            try:
                await self._bring(name)
            except (MachineError, OSError, msgspec.MsgspecError) as error:
                cause = error.cause if isinstance(error, MachineError) else str(error)
                if cause != self._problem and not isinstance(error, ConnectionLost):
                    self._problem = cause
                    self._say(f"checkpoint {int(name)} was not fetched yet: {cause}")
                if name == self._wanted:  # an agent that is reached again reports it again
                    self._tried = ""
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finishing.wait(), BETWEEN)

    async def _bring(self, name: str) -> None:
        if (self._paths.checkpoints / name).is_dir():
            return
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=self._paths.folder) as scratch:
            incoming = Incoming(self._machine, Path(scratch))
            answer = await self._fetch(incoming, name)
            there = msgspec.convert(answer.get("names", []), list[str])
            await in_thread(place, incoming.received, self._paths, name)
        await in_thread(follow, self._paths, name, there)


def at_home(paths: RunPaths) -> list[str]:
    """Return the names of the checkpoints that are here."""
    if not paths.checkpoints.is_dir():
        return []
    return sorted(p.name for p in paths.checkpoints.iterdir() if NAME.fullmatch(p.name))


def split_off(received: Iterable[Received]) -> tuple[dict[str, list[Received]], list[Received]]:
    """Split files into those of checkpoints, by the checkpoint's name, and all others."""
    found: dict[str, list[Received]] = {}
    others = []
    for one in received:
        name, _, file = one.path.removeprefix(PREFIX).partition("/")
        if one.path.startswith(PREFIX) and file and NAME.fullmatch(name):
            found.setdefault(name, []).append(one)
        else:
            others.append(one)
    return found, others


def place(received: Sequence[Received], paths: RunPaths, name: str) -> None:
    """Give a checkpoint its name, if it is whole; ``OSError`` says what is wrong."""
    target = paths.checkpoints / name
    if target.is_dir():
        return
    files = {one.path.removeprefix(f"{PREFIX}{name}/"): one for one in received}
    _check(files)
    partial = target.with_name(f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file, one in files.items():
        _fsync(one.scratch)
        one.scratch.replace(partial / file)
    _fsync(partial)
    partial.rename(target)
    _fsync(paths.checkpoints)


def _check(files: Mapping[str, Received]) -> None:
    manifest = files.get(_MANIFEST)
    if manifest is None or manifest.size > _LARGEST_MANIFEST:
        raise OSError("it has no manifest")
    try:
        listed = msgspec.json.decode(manifest.scratch.read_bytes(), type=_Manifest).files
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise OSError("its manifest cannot be read") from None
    if {*listed, _MANIFEST} != set(files) or any("/" in file for file in files):
        raise OSError("its files are not those of its manifest")
    for file, record in listed.items():
        if (files[file].size, files[file].sha256) != (record.bytes, record.sha256):
            raise OSError(f"{file} does not match the manifest")


def follow(paths: RunPaths, newest: str, there: Collection[str]) -> None:
    """Remove the checkpoints here that the workers have removed, once a newer one is here."""
    for name in at_home(paths):
        if name not in there and int(name) < int(newest):
            hidden = paths.checkpoints / f".{name}.removed"
            (paths.checkpoints / name).rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
