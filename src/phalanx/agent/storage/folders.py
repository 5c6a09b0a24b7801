"""Folders that are laid out from blobs: Phalanx's own code, the project, data, wheels.

Each is made under another name and then renamed, so that a folder that has its name is whole.
Data and wheels are links to the blobs (nothing is stored twice) that cannot be written; code and
project are copies, because the script may change its own files.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem, inside
from phalanx.agent.ownership import content_is, is_our_tree
from phalanx.agent.storage import blobs

if TYPE_CHECKING:
    Entries = list[dict[str, Any]]

SHARED = ("code", "data", "wheels")
LINKED = ("data", "wheels")
EXECUTED = ("code", "wheels")
"""Kinds whose files are compared with their checksums before every use, as they are executed."""
PAGE = 5000
"""Most missing blobs that one answer names."""
BASELINE = "project.json"
"""The file beside the project that records size and time of its files as they were laid out."""


def have(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Tell what of a manifest is missing here: itself, some blobs (a page of them), or nothing."""
    store, kind = blobs.store_of(agent), request["kind"]
    digest, size = blobs.checked_digest(request["manifest"]), int(request["size"])
    first = int(request.get("first", 0))
    target = target_of(agent, kind, digest)
    if first == 0:
        store.trouble = None
    if not store.has(digest, size):
        return {"manifest_offset": store.offset(digest, size)}
    entries = store.manifest(digest)
    if entries is None:
        return {"manifest_offset": 0}
    if kind in SHARED and is_whole(target, entries, kind in EXECUTED):
        os.utime(target)
        return {"ready": str(target)}
    missing = list(blobs.missing_blobs(store, entries, first))
    if first == 0:
        needed = sum(entries[number]["size"] - offset for number, offset in missing)
        if kind not in LINKED:
            needed += sum(entry["size"] for entry in entries)
        blobs.check_space(agent, needed)
    following = missing[PAGE][0] if len(missing) > PAGE else None
    return {"missing": missing[:PAGE], "next": following}


def target_of(agent: Agent, kind: str, digest: str) -> Path:
    if kind in SHARED:
        return Path(agent.folder) / kind / digest
    if kind == "project" and agent.run_folder is not None:
        return Path(agent.run_folder) / "project"
    raise RequestProblem(f"unknown kind of folder '{kind}'")


def is_whole(target: Path, entries: Entries, executed: bool) -> bool:
    """Whether the folder is ours and has every entry, in the right size.

    What is executed has to match to the byte, with no file beside it that could be imported.
    """
    if not is_our_tree(target):
        return False
    if executed and _names(target) != {e["path"] for e in entries if not e["folder"]}:
        return False
    return all(_is_right(target / entry["path"], entry, executed) for entry in entries)


def _names(target: Path) -> set[str]:
    """Return the paths of all files and links, without what Python compiled."""
    found = set()
    for place, folders, names in os.walk(target):
        folders[:] = [name for name in folders if name != "__pycache__"]
        paths = [Path(place, name) for name in (*names, *folders)]
        found |= {p.relative_to(target).as_posix() for p in paths if p.is_symlink() or p.is_file()}
    return found


def _is_right(path: Path, entry: dict[str, Any], executed: bool) -> bool:
    try:
        if entry["link"]:
            return os.readlink(str(path)) == str(entry["link"])  # noqa: PTH115  (Python 3.8)
        if executed and entry["sha256"]:
            return content_is(path, entry["sha256"])
        return not entry["sha256"] or path.lstat().st_size == entry["size"]
    except OSError:
        return False


def lay_out(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Make the folder of a manifest all of whose blobs are here."""
    store, kind = blobs.store_of(agent), request["kind"]
    digest = blobs.checked_digest(request["manifest"])
    entries = store.manifest(digest)
    if entries is None:
        raise RequestProblem("the request lists no files")
    target = target_of(agent, kind, digest)
    if kind in SHARED and is_whole(target, entries, kind in EXECUTED):
        return {"path": str(target)}
    try:
        _make(store, entries, target, linked=kind in LINKED)
        if kind == "project":
            (target.parent / BASELINE).write_text(json.dumps(snapshot(target)))
    except OSError as error:
        raise blobs.unwritable(agent, error) from error
    return {"path": str(target)}


def _make(store: blobs.BlobStore, entries: Entries, target: Path, linked: bool) -> None:
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    try:
        for entry in sorted(entries, key=lambda entry: bool(entry["link"])):
            _place(store, entry, inside(part, entry["path"]), linked)
        if target.exists():  # an older one that is not whole
            old = target.with_name(part.name + ".old")
            target.rename(old)
            part.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _place(store: blobs.BlobStore, entry: dict[str, Any], path: Path, linked: bool) -> None:
    if entry["sha256"] and not store.is_right(entry["sha256"]):
        raise RequestProblem(f"the stored copy of {entry['path']} is damaged", "Start again.")
    if entry["folder"]:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry["link"]:
        path.symlink_to(checked_link(entry["path"], entry["link"]))
    elif not (linked and _linked(store.path(entry["sha256"]), path)):
        shutil.copyfile(store.path(entry["sha256"]), path)
        mode = 0o755 if entry["executable"] else 0o644
        path.chmod(mode & ~0o222 if linked else mode)


def _linked(blob: Path, path: Path) -> bool:
    """Try to make a link; return whether it worked, as file systems limit links or have none."""
    try:
        os.link(blob, path)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def checked_link(path: str, link: Any) -> str:
    """Return the target of a link, if it lies inside the folder."""
    if not isinstance(link, str) or link.startswith("/") or "\0" in link:
        raise RequestProblem(f"unsafe link: {link!r}")
    end = os.path.normpath(PurePosixPath(path).parent / link)
    if end == ".." or end.startswith("../"):
        raise RequestProblem(f"unsafe link: {link!r}")
    return link


def read_baseline(project: Path) -> dict[str, list[int]] | None:
    try:
        found = json.loads((project.parent / BASELINE).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def snapshot(folder: Path) -> dict[str, list[int]]:
    """Return size and time of each regular file below ``folder``."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(place) / name
            if path.is_symlink() or not path.is_file() or name.endswith(".pyc"):
                continue
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = [status.st_size, status.st_mtime_ns]
    return found
