"""Looks at the user's script before anything is started."""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.script_imports import imported_files, parse

_ENTRIES = {"fit", "join"}
_CANNOT_TELL = {"importlib", "runpy", "exec", "__import__"}
"""A script that uses one of these may reach phalanx in ways that cannot be read from it."""
_MOST_FILES = 200


def check_script(path: Path, *, joins: bool = True) -> Path:
    """``path`` itself, if it is a script that can be run; syntax errors are left to the run.

    ``joins``: it has to call ``phalanx.fit`` or ``phalanx.join``; those of others need not.
    """
    if path.is_dir():
        raise InputError(f"'{path}' is a folder, not a script", _suggest_inside(path))
    if not path.exists():
        raise InputError(f"there is no script '{path}'", _suggest_near(path))
    if not path.is_file():
        raise InputError(f"'{path}' is not a regular file", "Name a .py file.")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read '{path}': {error.strerror}", "Check the permissions of the file."
        ) from error
    if joins and not _may_reach_phalanx(path, source):
        raise InputError(f"'{path}' has no phalanx.fit or phalanx.join", _remedy_for(source))
    return path


def _remedy_for(source: bytes) -> str:
    """Somebody else's distributed script can be run as it is."""
    if b"torch.distributed" in source or b"DistributedDataParallel" in source:
        return "A script that uses torch.distributed itself runs as it is: --framework torch"
    if re.search(rb"^\s*(import|from) (accelerate|lightning|pytorch_lightning)\b", source, re.M):
        return "A script of Accelerate or Lightning runs as it is: --framework torch"
    if b"tf.distribute" in source or b"tensorflow" in source:
        return "A script of TensorFlow runs as it is: --framework tensorflow"
    return (
        "Keep your loop with run = phalanx.join(model, optimizer), or let "
        "phalanx.fit(model, optimizer=opt, loss=loss, train=train) be the loop."
    )


def _may_reach_phalanx(script: Path, source: bytes) -> bool:
    """Whether the script, or a module beside it that it imports, uses phalanx."""
    folders = [script.resolve().parent, *_python_path()]
    waiting, seen = [(script, source)], {script.resolve()}
    while waiting and len(seen) < _MOST_FILES:
        file, text = waiting.pop()
        tree = parse(text)
        if tree is None or _uses_phalanx(tree):
            return True
        file = file.resolve()
        for module in imported_files(tree, file, [file.parent, *folders]):
            if module not in seen and os.access(module, os.R_OK):
                seen.add(module)
                waiting.append((module, module.read_bytes()))
    return bool(waiting)


def _uses_phalanx(tree: ast.AST) -> bool:
    words = set(_words(tree))
    return bool(words & _CANNOT_TELL) or ("phalanx" in words and bool(words & _ENTRIES))


def _words(tree: ast.AST) -> Iterator[str]:
    """Every name that the code mentions, the parts of dotted ones apart."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Import(names=names):
                for alias in names:
                    yield from alias.name.split(".")
            case ast.ImportFrom(module=module, names=names):
                yield from (module or "").split(".")
                for alias in names:
                    yield from _ENTRIES if alias.name == "*" else {alias.name}
            case ast.Constant(value=str() as text) if text in _ENTRIES:
                yield text


def _python_path() -> list[Path]:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [Path(entry) for entry in entries if entry]


def _suggest_near(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder '{folder}' either."
    scripts = sorted(file.name for file in folder.glob("*.py"))
    near = difflib.get_close_matches(path.name, scripts, n=1)
    near = near or [name for name in scripts if name == f"{path.name}.py"]
    if near:
        return f"Did you mean '{folder / near[0]}'?"
    return "Check the path; it is relative to the folder you are in."


def _suggest_inside(folder: Path) -> str:
    scripts = sorted(folder.glob("*.py"))
    return f"Name a file in it, such as '{scripts[0]}'." if scripts else "Name a .py file."
