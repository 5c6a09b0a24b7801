"""Checkpoints leave this machine as soon as they are whole, so that they are not lost with it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.agent.frames import RequestProblem, field
from phalanx.agent.storage.run_results import run_folder_of, send_file
from phalanx.agent.tails import CHECKPOINT_NAME, CHECKPOINTS, finished_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phalanx.agent.agent import Agent

_LEAVING = ".leaving"


def checkpoint(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Send one, as results are sent; the answer names all that are here."""
    folder, name = run_folder_of(agent), field(request, "checkpoint", str)
    if not CHECKPOINT_NAME.fullmatch(name):
        raise RequestProblem(f"invalid checkpoint name: {name[:100]!r}")
    with _held(folder, name) as place:
        for path in sorted(place.iterdir()):
            send_file(agent, path, f"{CHECKPOINTS}/{name}/{path.name}")
    return {"names": sorted(finished_checkpoints(folder))}


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
        raise RequestProblem(f"checkpoint {name} no longer exists") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


HANDLERS = {"checkpoint": checkpoint}
SLOW = ("checkpoint",)
