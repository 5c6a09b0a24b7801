"""Finds the project of a script, and which of its files are sent to machines."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pathspec

from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import runs_home
from phalanx.core.script.packages import place_of
from phalanx.core.script.script_imports import script_files
from phalanx.launch.shipping.listing import FileEntry, regular, walk
from phalanx.launch.shipping.manifest import FileManifest, make_manifest

MARKS = (".git", "pyproject.toml", "setup.py")
NEVER = frozenset({".git", ".venv", "venv", "__pycache__", "node_modules", ".hg", ".svn"})
SHIP_LIMIT = 200_000_000


def find_root(script: Path) -> Path:
    """Return the project folder nearest above ``script``; else its import root."""
    folder = script.resolve().parent
    for place in (folder, *folder.parents):
        if _is_too_wide(place):
            break
        marked = any((place / mark).exists() for mark in MARKS)
        if marked or any(place.glob("requirements*.txt")):
            return place
    return place_of(script.resolve()).root


def _is_too_wide(folder: Path) -> bool:
    """Whether a folder is too wide for a project: the home, a folder above it, or /tmp."""
    home = Path(os.path.realpath(Path.home()))
    return folder in {home, *home.parents, Path(os.path.realpath(tempfile.gettempdir()))}


def project_manifest(
    script: Path, limit: int = SHIP_LIMIT, without: Sequence[Path] = (), follow: bool = False
) -> tuple[Path, FileManifest]:
    """Return the project's root and the files to send: always the script, even if it is ignored.

    ``without``: files that must not leave this machine, such as the blueprint with its passwords.
    ``follow``: see :func:`walk`.
    """
    root = find_root(script)
    if _is_too_wide(root):  # a home: send the script and the modules that it imports
        files = [
            regular(file.relative_to(root).as_posix(), file.stat()) for file in script_files(script)
        ]
    else:
        files = list_files(root, limit, follow)
    kept_here = {Path(os.path.realpath(path)) for path in without}
    files = [f for f in files if Path(os.path.realpath(root / f.path)) not in kept_here]
    name = script.resolve().relative_to(root).as_posix()
    if all(file.path != name for file in files):
        files += [regular(name, script.stat())]
    _check_size(root, files, limit)
    return root, make_manifest(root, files)


def list_files(root: Path, limit: int = SHIP_LIMIT, follow: bool = False) -> list[FileEntry]:
    """List the files of a project, except those that ``Ignored`` leaves out."""
    root = root.resolve()
    rules = Ignored(root)
    files = walk(root, rules.leaves_out, follow=follow)
    _check_size(root, files, limit)
    return files


def _check_size(root: Path, files: list[FileEntry], limit: int) -> None:
    size = sum(file.size for file in files)
    if size <= limit:
        return
    largest = sorted(files, key=lambda file: file.size, reverse=True)[:3]
    names = ", ".join(f"{file.path} ({words.size(file.size)})" for file in largest)
    raise InputError(
        f"the project {root} has {words.size(size)}, above the limit of {words.size(limit)}; "
        f"its largest files: {names}",
        "Exclude files in a .gitignore, send data by --data, or set ship_limit in the blueprint.",
    )


class Ignored:
    """The .gitignore files of a folder, of those above it in the repository, and of those below."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs = Path(os.path.realpath(runs_home()))
        self._rules: dict[str, pathspec.GitIgnoreSpec | None] = {}
        self._above = _rules_above(root)

    def leaves_out(self, path: str, is_folder: bool) -> bool:
        name = path.rpartition("/")[2]
        if name in NEVER or name.endswith(".pyc"):
            return True
        if is_folder and self._is_runs(path):
            return True
        return self._is_ignored(f"{path}/" if is_folder else path)

    def _is_runs(self, path: str) -> bool:
        folder = self._root / path
        if folder == self._runs:
            return True
        # A folder of runs that were started here, while this run was started elsewhere.
        return path == "runs" and any(folder.glob("*/launch.json"))

    def _is_ignored(self, path: str) -> bool:
        """Decide by the innermost .gitignore that matches the path, and by its last such line."""
        parts = path.rstrip("/").split("/")
        for depth in range(len(parts) - 1, -1, -1):
            base = "/".join(parts[:depth])
            if base not in self._rules:
                self._rules[base] = _read_rules(self._root / base / ".gitignore")
            verdict = _verdict(self._rules[base], path[len(base) + 1 if base else 0 :])
            if verdict is not None:
                return verdict
        for rules, prefix in self._above:
            verdict = _verdict(rules, prefix + path)
            if verdict is not None:
                return verdict
        return False


def _verdict(rules: pathspec.GitIgnoreSpec | None, path: str) -> bool | None:
    return None if rules is None else rules.check_file(path).include


def _read_rules(file: Path) -> pathspec.GitIgnoreSpec | None:
    if not file.is_file():  # reading a pipe might never end
        return None
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise InputError(f"{file}: {error}", "Correct that line, or remove it.") from None


def _rules_above(root: Path) -> list[tuple[pathspec.GitIgnoreSpec, str]]:
    """Return the ignore rules of the repository around ``root``, the innermost first, each with the
    path of root in it."""
    found: list[tuple[pathspec.GitIgnoreSpec, str]] = []
    for folder in (root, *root.parents):
        prefix = "" if folder == root else f"{root.relative_to(folder).as_posix()}/"
        if folder != root and (rules := _read_rules(folder / ".gitignore")):
            found.append((rules, prefix))
        if (folder / ".git").exists():
            if rules := _read_rules(folder / ".git" / "info" / "exclude"):
                found.append((rules, prefix))
            return found
    return []  # outside a repository, nothing above counts
