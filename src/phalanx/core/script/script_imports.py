"""Which files a script's imports lead to, found without running anything."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MOST_FILES = 500


def script_files(script: Path) -> list[Path]:
    """``script`` and every module under its folder that its imports lead to."""
    root = script.resolve().parent
    found: dict[Path, None] = {}
    waiting = [script.resolve()]
    while waiting and len(found) < _MOST_FILES:
        file = waiting.pop()
        if file not in found:
            found[file] = None
            waiting.extend(_local(file, root))
    return sorted(found)


def _local(file: Path, root: Path) -> Iterator[Path]:
    """The files under ``root`` that ``file`` imports; one that cannot be read imports nothing."""
    try:
        tree = parse(file.read_bytes())
    except OSError:
        return
    if tree is not None:
        # A link that leads out of the script's folder is not the script's own.
        yield from (f for f in imported_files(tree, file, [root]) if f.is_relative_to(root))


@functools.lru_cache(maxsize=16)
def parse(source: bytes) -> ast.Module | None:
    """The source as a tree; ``None`` when it is not Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def function_at(tree: ast.Module, name: str, first: int) -> Function | None:
    """The function that begins in line ``first``, with its decorators."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.name == name:
            lines = [node.lineno, *(d.lineno for d in node.decorator_list)]
            if min(lines) == first:
                return node
    return None


def imported_files(tree: ast.AST, file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """The files that importing ``file`` leads to next, as far as they lie in ``folders``.

    Relative imports start from the file's own folder. Phalanx itself is no part of a script.
    """
    for dots, name in imported(tree):
        if dots:
            parents = file.parents
            yield from _files_of(parents[min(dots, len(parents)) - 1], name)
        elif name.partition(".")[0] != "phalanx":
            for folder in folders:
                yield from _files_of(folder, name)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every imported module with the number of dots before its name.

    A name that is imported from a package may be a module too, so it is among them.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            yield node.level, ".".join(base)
            for alias in node.names:
                if alias.name != "*":
                    yield node.level, ".".join([*base, alias.name])


def _files_of(folder: Path, name: str) -> Iterator[Path]:
    """The files that importing ``name`` from ``folder`` would execute."""
    place = folder
    for part in name.split(".") if name else ():
        place = place / part
        for candidate in (place / "__init__.py", place.with_name(part + ".py")):
            if candidate.is_file():
                yield candidate.resolve()
