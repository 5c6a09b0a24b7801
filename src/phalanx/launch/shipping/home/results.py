"""Brings home what workers wrote on machines, and removes what the run left there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core import words
from phalanx.core.errors import MachineError, PhalanxError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.link.agent_link import AgentLink
from phalanx.launch.link.event_loop import in_thread
from phalanx.launch.shipping.home.checkpoints import at_home, place, split_off
from phalanx.launch.shipping.home.incoming import Incoming, Received, folder_below, shown
from phalanx.launch.shipping.send import read_answer

COLLECT_SECONDS = 300.0
"""Seconds without a piece of a result; all results may take as long as the line needs."""
CLEAN_SECONDS = 120.0
NAMED = 10


@dataclass
class Collected:
    """What was fetched; ``incomplete`` names machines whose results must not be removed yet."""

    notes: list[str] = field(default_factory=list)
    incomplete: set[str] = field(default_factory=set)


class NewFiles(msgspec.Struct):
    """New or changed files in the project's folder on a machine."""

    files: list[tuple[str, int]]
    count: int
    path: str


async def collect_results(links: Sequence[AgentLink], paths: RunPaths) -> Collected:
    """Fetch the results of all machines; ``links`` are in the order of their ranks."""
    collected = Collected()
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=paths.folder) as scratch:
        places = [Path(scratch) / str(number) for number in range(len(links))]
        incomings = [Incoming(k.machine.name, p) for k, p in zip(links, places, strict=True)]
        have = at_home(paths)
        pairs = zip(links, incomings, strict=True)
        came = (_collect(link, incoming, have) for link, incoming in pairs)
        answers = await asyncio.gather(*came, return_exceptions=True)
        for link, incoming, answer in zip(links, incomings, answers, strict=True):
            note_failure(incoming, answer, collected)
            await in_thread(settle_all, incoming, paths, collected)  # so that pings go on
            if incoming.machine not in collected.incomplete:
                await _confirm(link, collected)
    return collected


async def _confirm(link: AgentLink, collected: Collected) -> None:
    """Let the machine remove its results when it is cleaned up."""
    try:
        await link.ask("collected", timeout=CLEAN_SECONDS)
    except MachineError as error:
        collected.notes.append(error.cause)
        collected.incomplete.add(link.machine.name)


async def _collect(link: AgentLink, incoming: Incoming, have: Sequence[str]) -> None:
    answer = await _take(
        link,
        incoming,
        "collect",
        timeout=COLLECT_SECONDS,
        doing=lambda: f"fetching its results, {words.size(incoming.bytes)} so far",
        have=have,
    )
    names = msgspec.convert(answer.get("refused", []), list[str])
    incoming.refused += [f"{shown(name)} (not UTF-8)" for name in names]


async def take_checkpoint(link: AgentLink, incoming: Incoming, name: str) -> dict[str, Any]:
    return await _take(
        link,
        incoming,
        "checkpoint",
        timeout=COLLECT_SECONDS,
        doing=lambda: f"fetching a checkpoint, {words.size(incoming.bytes)} so far",
        checkpoint=name,
    )


async def _take(link: AgentLink, incoming: Incoming, ask: str, **fields: Any) -> dict[str, Any]:
    """Ask a machine for something that arrives as results do."""
    try:
        with link.diverted(incoming.on_tell):
            return await link.ask(ask, **fields)
    finally:
        incoming.close()


def note_failure(incoming: Incoming, answer: object, collected: Collected) -> None:
    if isinstance(answer, BaseException):
        if not isinstance(answer, PhalanxError | OSError | msgspec.ValidationError):
            raise answer
        cause = answer.cause if isinstance(answer, PhalanxError) else str(answer)
        collected.notes.append(f"not all results of {incoming.machine} were fetched: {cause}")
        collected.incomplete.add(incoming.machine)
    if incoming.refused:
        names = _some(incoming.refused)
        collected.notes.append(f"{incoming.machine}: these results were not fetched: {names}")
        collected.incomplete.add(incoming.machine)


def settle_all(incoming: Incoming, paths: RunPaths, collected: Collected) -> None:
    checkpoints, others = split_off(incoming.received)
    for name, files in checkpoints.items():
        try:
            place(files, paths, name)
        except OSError as error:
            why = error.strerror or error
            collected.notes.append(f"{incoming.machine}: checkpoint {int(name)} is skipped: {why}")
            collected.incomplete.add(incoming.machine)
    for one in others:
        _settle(one, incoming.machine, paths.folder, collected)


def _settle(one: Received, machine: str, folder: Path, collected: Collected) -> None:
    """Give a file its name; if two machines have that name, the first keeps it."""
    others = f"files/{machine}/{one.path.removeprefix('files/')}"
    for path in (one.path, others):
        if _is_there(one, folder, path):
            return
        if _place(one, folder, path):
            break
    else:
        collected.notes.append(f"{machine}: {shown(one.path)} cannot be written here")
        collected.incomplete.add(machine)
        return
    if path != one.path:
        collected.notes.append(f"{shown(one.path)} of {machine} was saved as {shown(path)}")


def _is_there(one: Received, folder: Path, path: str) -> bool:
    """Whether the same content has that name already."""
    *folders, name = path.split("/")
    with contextlib.suppress(OSError), folder_below(folder, folders) as place:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=place), "rb") as file:
            if os.fstat(file.fileno()).st_size == one.size:
                return hashlib.file_digest(file, "sha256").hexdigest() == one.sha256
    return False


def _place(one: Received, folder: Path, path: str) -> bool:
    """Move it below ``folder``, following no link and replacing nothing; return success."""
    *folders, name = path.split("/")
    with contextlib.suppress(OSError), folder_below(folder, folders) as place:
        try:
            os.stat(name, dir_fd=place, follow_symlinks=False)
        except FileNotFoundError:
            os.replace(one.scratch, name, dst_dir_fd=place)
            return True
    return False


async def clean_up(link: AgentLink) -> list[str]:
    """Remove the run from a machine, except what is nowhere else; return lines on that."""
    name = link.machine.name
    found = await link.ask(
        "new_files", timeout=CLEAN_SECONDS, doing=lambda: "looking for new files"
    )
    new = read_answer(link, found, NewFiles)
    answer = await link.ask(
        "clean", timeout=CLEAN_SECONDS, doing=lambda: "cleaning up", keep_project=new.count > 0
    )
    notes = [f"{name} still has {_new_files(new)}"] if new.count else []
    left = read_answer(link, answer.get("kept", []), list[str])
    kept = [shown(path) for path in left if path != new.path]
    return notes + ([f"{name} has results that were not fetched: {_some(kept)}"] if kept else [])


def _new_files(new: NewFiles) -> str:
    files = [f"{shown(path)} ({words.size(size)})" for path, size in new.files]
    word = "new file" if new.count == 1 else "new files"
    return f"{new.count} {word} in {shown(new.path)}: {_some(files, new.count)}"


def _some(names: Sequence[str], count: int | None = None) -> str:
    more = (count or len(names)) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
