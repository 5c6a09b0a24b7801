"""The files of a training script: itself, and the modules beside it that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 500


def script_files(script: Path) -> list[Path]:
    """``script`` and every local module it leads to, found without running anything."""
    root = script.resolve().parent
    found: dict[Path, None] = {}
    waiting = [script.resolve()]
    while waiting and len(found) < MOST_FILES:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        for name in _imports(file, root):
            waiting.extend(_files_of(root, name))
    return sorted(found)


def _imports(file: Path, root: Path) -> Iterator[str]:
    """Dotted names that the file imports; a file that cannot be parsed imports nothing."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, file, root)
            yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _base(node: ast.ImportFrom, file: Path, root: Path) -> str:
    """The dotted name that ``from … import`` starts from, relative ones resolved."""
    if not node.level:
        return node.module or ""
    package = file.parent.relative_to(root).parts
    kept = package[: len(package) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _files_of(root: Path, name: str) -> Iterator[Path]:
    """The files under ``root`` that importing ``name`` would execute."""
    place = root
    for part in name.split(".") if name else ():
        place = place / part
        for candidate in (place / "__init__.py", place.with_suffix(".py")):
            # A link that leads out of the script's folder is not the script's own.
            if candidate.is_file() and candidate.resolve().is_relative_to(root):
                yield candidate.resolve()
