"""Walks a folder that is to be sent: its files, links and empty folders, with safe names."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError

MOST_FILES = 200_000

LeftOut = Callable[[str, bool], bool]
"""``(path, is_folder)`` → whether the path is left out; it is relative, with slashes."""


class FileEntry(msgspec.Struct, frozen=True):
    """A file, a link (to ``link``, inside the root) or an empty folder; ``path`` is relative, with
    slashes."""

    path: str
    size: int = 0
    sha256: str = ""
    executable: bool = False
    link: str = ""
    folder: bool = False


def walk(root: Path, left_out: LeftOut, *, follow: bool = False) -> list[FileEntry]:
    """Return everything below ``root`` that is not left out, in the order of the paths.

    ``follow``: a link to a file that is not sent (outside, or left out) is replaced by that file.
    """
    real_root = Path(os.path.realpath(root))
    found = list(_entries(real_root, left_out))
    shipped = {file.path for file in found}
    found = [_with_target(real_root, file, shipped, follow) for file in found]
    return sorted(found, key=lambda file: file.path)


def _entries(root: Path, left_out: LeftOut) -> Iterator[FileEntry]:
    """Yield files, links, and folders that have neither files nor links nor folders."""
    count = 0
    for place, folders, names in os.walk(root, onerror=_refuse_unreadable):
        inner, kept, before = Path(place).relative_to(root), [], count
        for name in (*folders, *names):
            path, status = (inner / name).as_posix(), Path(place, name).lstat()
            is_folder = stat.S_ISDIR(status.st_mode)
            if left_out(path, is_folder):
                continue
            _check_name(root, path)
            if is_folder:
                kept.append(name)
            elif stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode):
                count += 1
                link = stat.S_ISLNK(status.st_mode)
                yield _link(root, path) if link else regular(path, status)
        folders[:] = kept
        if not kept and count == before and place != str(root):
            yield FileEntry(inner.as_posix(), folder=True)
        if count > MOST_FILES:
            raise InputError(
                f"{root} has more than {MOST_FILES} files to send",
                "Exclude some in a .gitignore, or keep them on the machines ('data' in the "
                "blueprint).",
            )


def _refuse_unreadable(error: OSError) -> None:
    raise InputError(
        f"cannot read the folder {error.filename}: {error.strerror}",
        "Make it readable, or exclude it in a .gitignore: it would be sent to the machines.",
    )


def regular(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(path, status.st_size, executable=bool(status.st_mode & stat.S_IXUSR))


def _check_name(root: Path, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="replace").decode()
        raise InputError(
            f"{root}: the name '{shown}' is not UTF-8, so it cannot be sent",
            "Rename it, or exclude it in a .gitignore.",
        ) from None


def _link(root: Path, path: str) -> FileEntry:
    """Return the entry of a link, with its target relative to the link's folder."""
    source = root / path
    try:
        target = Path(os.path.realpath(source, strict=True))
    except OSError:
        raise _refused(source, "points to nothing") from None
    if not target.is_relative_to(root) and not target.is_file():
        raise _refused(source, "points to a folder outside of what is sent")
    return FileEntry(path, link=os.path.relpath(target, os.path.realpath(source.parent)))


def _refused(link: Path, why: str, otherwise: str = "") -> InputError:
    return InputError(
        f"the link {link} {why}",
        f"{otherwise}Exclude it in a .gitignore; what it points to can be sent with --data.",
    )


def _with_target(root: Path, file: FileEntry, shipped: set[str], follow: bool) -> FileEntry:
    """Keep a link whose target is sent; refuse any other, or with ``follow`` send its file instead.

    The author of the project may have added a link in order to obtain a file of this machine.
    """
    if not file.link:
        return file
    target = Path(os.path.realpath(root / file.path))
    inside = target.is_relative_to(root)
    if inside and (not target.is_file() or target.relative_to(root).as_posix() in shipped):
        return file
    if not follow:
        where = "is excluded" if inside else "is outside of what is sent"
        raise _refused(
            root / file.path,
            f"points to {target}, which {where}",
            "To send the file itself: follow_links: yes in the blueprint. To leave it out: ",
        )
    return regular(file.path, target.stat())
