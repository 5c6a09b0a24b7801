"""Checkpoints leave this machine as soon as they are whole, so that they are not lost with it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.agent.frames import Problem, field
from phalanx.agent.storage.run_results import run_folder_of, send_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phalanx.agent.main import Agent

CHECKPOINTS = "checkpoints"
_LEAVING = ".leaving"
_NAME = re.compile(r"[0-9]{6,15}")


def tell_newest(agent: Agent) -> None:
    """Say which checkpoint is the newest that is finished, once."""
    if agent.run_folder is None or agent.connection is None:
        return
    newest = max(_names(agent.run_folder), key=int, default="")
    if newest and newest != agent.saved:
        agent.saved = newest
        agent.tell("saved", checkpoint=newest)


def checkpoint(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Send one, as results are sent; the answer names all that are here."""
    folder, name = run_folder_of(agent), field(request, "checkpoint", str)
    if not _NAME.fullmatch(name):
        raise Problem(f"not the name of a checkpoint: {name[:100]!r}")
    with _held(folder, name) as place:
        for path in sorted(place.iterdir()):
            send_file(agent, path, f"{CHECKPOINTS}/{name}/{path.name}")
    return {"names": sorted(_names(folder))}


@contextlib.contextmanager
def _held(folder: Path, name: str) -> Iterator[Path]:
    """Its files by second names: the workers may remove the checkpoint while it is sent."""
    place = folder / _LEAVING / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        for path in (folder / CHECKPOINTS / name).iterdir():
            os.link(path, place / path.name, follow_symlinks=False)
        yield place
    except FileNotFoundError:
        raise Problem(f"checkpoint {name} is not here any more") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder / CHECKPOINTS) if _NAME.fullmatch(name)]  # noqa: PTH208
    except OSError:
        return []


HANDLERS = {"checkpoint": checkpoint}
SLOW = ("checkpoint",)
