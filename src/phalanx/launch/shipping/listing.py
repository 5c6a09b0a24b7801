"""Walks a folder that shall be sent: its files, links and empty folders, with safe names."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError

MOST_FILES = 200_000

LeftOut = Callable[[str, bool], bool]
"""Whether the path (relative, with slashes), a folder or not, is left out."""


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
    """Everything below ``root`` that is not left out, in the order of the paths.

    ``follow``: links to files that are not sent, outside or left out, are sent as those files.
    """
    real_root = Path(os.path.realpath(root))
    found = list(_folder(real_root, "", left_out))
    shipped = {file.path for file in found}
    found = [_with_target(real_root, file, shipped, follow) for file in found]
    return sorted(found, key=lambda file: file.path)


def _folder(root: Path, at: str, left_out: LeftOut) -> Iterator[FileEntry]:
    """The files of one folder and those below it; itself when there are none."""
    waiting = [at]
    count = 0
    while waiting:
        place = waiting.pop()
        kept = list(_children(root, place, left_out))
        for child in kept:
            if child.folder:
                waiting.append(child.path)
            else:
                count += 1
                yield child
        if not kept and place:
            yield FileEntry(place, folder=True)
        if count > MOST_FILES:
            raise InputError(
                f"{root} has more than {MOST_FILES} files to send",
                "Exclude some in a .gitignore, or keep them on the machines ('data' in the "
                "blueprint).",
            )


def _children(root: Path, place: str, left_out: LeftOut) -> Iterator[FileEntry]:
    try:
        with os.scandir(root / place) as entries:
            names = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"cannot read the folder {root / place}: {error.strerror}",
            "Make it readable, or exclude it in a .gitignore: it would be sent to the machines.",
        ) from None
    for entry in names:
        path = f"{place}/{entry.name}" if place else entry.name
        if not left_out(path, entry.is_dir(follow_symlinks=False)):
            _check_name(root, path)
            yield from _child(root, path, entry)


def _child(root: Path, path: str, entry: os.DirEntry[str]) -> Iterator[FileEntry]:
    if entry.is_symlink():
        yield _link(root, path)
        return
    mode = entry.stat(follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        yield FileEntry(path, folder=True)
    elif stat.S_ISREG(mode):
        yield regular(path, entry.stat(follow_symlinks=False))


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
    """A link, by where it leads from its own folder."""
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
    """A link that stays a link leads to what is sent; another one is refused, or becomes the file.

    The author of the project may have put the link there to get at a file of this machine.
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
