"""Send a run's results to the controller at its end, and remove its folder and what is unused.

The files that workers wrote to the run's folder are sent in pieces, each file followed by the
checksum of what was sent. New and changed files of the project's folder are only named.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phalanx.agent import background
from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem, field
from phalanx.agent.life import PARTS
from phalanx.agent.log_forwarder import CHECKPOINT_NAME, CHECKPOINTS, finished_checkpoints
from phalanx.agent.ownership import PIECE
from phalanx.agent.storage.environments import MARKER
from phalanx.agent.storage.folders import read_baseline, snapshot

FOLDERS = ("files", "checkpoints", "profiles")
FILES = ("model.safetensors", "best.safetensors", "profile.json")
HOME_MARKER = "results-are-home"
NAMED = 200
"""How many new files are named one by one."""
LEAVING = ".leaving"


def collect(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Send every result: ``result``, its ``result_part``s, ``result_end``.

    Checkpoints that the controller has are not sent again.
    """
    folder = run_folder_of(agent)
    have = {f"checkpoints/{name}" for name in field(request, "have", list, [])}
    refused: list[str] = []
    for path in result_files(folder):
        name = path.relative_to(folder).as_posix()
        if name.rpartition("/")[0] in have:
            continue
        if not _is_text(name):
            refused.append(repr(os.fsencode(name))[2:-1])
            continue
        send_file(agent, path, name)
    return {"refused": refused[:NAMED]}


def run_folder_of(agent: Agent) -> Path:
    if agent.run_folder is None:
        raise RequestProblem("the request names no run")
    return Path(agent.run_folder)


def result_files(folder: Path) -> Iterator[Path]:
    for name in FILES:
        if _is_regular(folder / name):
            yield folder / name
    for name in FOLDERS:
        if (folder / name).is_symlink():
            continue
        for place, folders, names in os.walk(folder / name):
            folders.sort()
            yield from (p for p in (Path(place) / n for n in sorted(names)) if _is_regular(p))


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def send_file(agent: Agent, path: Path, name: str) -> None:
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        left = os.fstat(file.fileno()).st_size
        agent.send({"tell": "result", "path": name, "size": left})
        while left:
            piece = file.read(min(PIECE, left))
            if not piece:
                break
            left -= len(piece)
            digest.update(piece)
            agent.send({"tell": "result_part"}, piece)
    agent.send({"tell": "result_end", "sha256": digest.hexdigest()})


def new_files(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """The files of the project's folder that are new or changed, with their sizes."""
    project = run_folder_of(agent) / "project"
    found = _changed(project)
    listed = [(name.encode(errors="replace").decode(), size) for name, size in found[:NAMED]]
    return {"files": listed, "count": len(found), "path": str(project)}


def _changed(project: Path) -> list[tuple[str, int]]:
    before = read_baseline(project)
    if before is None or not project.is_dir():
        return []
    now = snapshot(project)
    return sorted((name, size[0]) for name, size in now.items() if before.get(name) != size)


def collected(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Mark that the controller has all results, so that they may be removed here."""
    (run_folder_of(agent) / HOME_MARKER).touch()
    return {}


def clean(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Remove the run's folder, except results that exist only here, and blobs unused for long."""
    folder = run_folder_of(agent)
    keep = {"project"} if request.get("keep_project") else set()
    if not (folder / HOME_MARKER).exists():
        keep |= {path.relative_to(folder).parts[0] for path in result_files(folder)}
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in keep:
            remove(path)
    with contextlib.suppress(OSError):  # files that are kept or not removable are in the answer
        folder.rmdir()
    remove_unused(Path(agent.folder), _is_needed)
    return {"kept": sorted(str(path) for path in folder.iterdir()) if folder.is_dir() else []}


def _is_needed(folder: Path) -> bool:
    """Whether a run that its controller abandoned has files that exist only here."""
    project = folder / "project"
    kept = project.is_dir() and read_baseline(project) is None  # an earlier clean kept it
    at_home = (folder / HOME_MARKER).exists() or not any(result_files(folder))
    return bool(kept or not at_home or _changed(project))


def checkpoint(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Send a finished checkpoint during the run, so that it is not lost with this machine; the
    answer names all checkpoints that are here."""
    folder, name = run_folder_of(agent), field(request, "checkpoint", str)
    if not CHECKPOINT_NAME.fullmatch(name):
        raise RequestProblem(f"invalid checkpoint name: {name[:100]!r}")
    with held(folder, name) as place:
        for path in sorted(place.iterdir()):
            send_file(agent, path, f"{CHECKPOINTS}/{name}/{path.name}")
    return {"names": sorted(finished_checkpoints(folder))}


@contextlib.contextmanager
def held(folder: Path, name: str) -> Iterator[Path]:
    """Hard-link a checkpoint's files elsewhere: workers may remove it while it is sent."""
    place = folder / LEAVING / name
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


KEEP_SECONDS = 30 * 24 * 3600.0
PART_SECONDS = 24 * 3600.0
MOST_LOOKED_AT = 200000


def remove_unused(home: Path, is_needed: Callable[[Path], bool]) -> None:
    """Remove files that no run has used for 30 days; each use touches a file."""
    now = time.time()
    old = now - KEEP_SECONDS
    for path in itertools.islice((home / "blobs").glob("*/*"), MOST_LOOKED_AT):
        _remove_if_older(path, old)
    for kind in ("code", "data", "wheels"):
        for path in (home / kind).glob("*.part*"):
            _remove_if_older(path, now - PART_SECONDS)
        for path in (home / kind).glob("*"):
            _remove_if_older(path, old)
    for path in (home / "environments").glob("*"):
        if path.is_dir() and _touched(path / MARKER, path) < old:
            _remove_environment(path, old)
    for path in (home / "runs").glob("*"):
        if path.is_dir() and _last_sign(path) < old and not _lives(path) and not is_needed(path):
            remove(path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _remove_if_older(path: Path, moment: float) -> None:
    try:
        if path.lstat().st_mtime < moment:
            remove(path)
    except OSError:
        pass


def _touched(*paths: Path) -> float:
    """When the first of ``paths`` that exists was changed; now, if none exists."""
    for path in paths:
        with contextlib.suppress(OSError):
            return path.lstat().st_mtime
    return time.time()


def _remove_environment(folder: Path, moment: float) -> None:
    """Remove an old environment that no run locks; its lock stays, as others may wait for it."""
    with contextlib.suppress(OSError), folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _touched(folder / MARKER, folder) < moment:
            # The marker goes first: a half removed environment must not pass for a whole one.
            (folder / MARKER).unlink(missing_ok=True)
            remove(folder)


def _last_sign(run: Path) -> float:
    """When a run's folder, or a file that its workers write, last changed."""
    parts = [run / name for name in PARTS]
    files = [path for part in parts for path in part.glob("*")]
    return max(_touched(path) for path in (run, *parts, *files) if path.exists())


def _lives(run: Path) -> bool:
    try:
        return background.answers(run)
    except RequestProblem:
        return True
