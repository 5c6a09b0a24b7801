"""Finds from the names in a piece of a script whether that piece may train a model.

A piece that computes gradients or steps says ``backward``, ``step`` or ``grad``, or names something
in the script that does. Where no file of the script says so, others do it, and nothing is known.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from pathlib import Path

from phalanx.core.script.script_imports import Function, parse, script_files

_TRAINS = "backward()"
"""A name that stands for code which may compute gradients or take steps."""


def may_train(body: Iterable[ast.AST], files: frozenset[Path]) -> bool:
    """Whether statements of a script may train; ``files`` lead to all that it imports."""
    known, reached = _names_in_functions(files), set[str]()
    if not any(_TRAINS in names for names in known.values()):
        return True
    waiting = {"__call__"}.union(*map(_names, body))
    while waiting:
        reached |= waiting
        waiting = {name for one in waiting for name in known.get(one, ())} - reached
    return _TRAINS in reached


@functools.lru_cache(maxsize=4)
def _names_in_functions(files: frozenset[Path]) -> dict[str, set[str]]:
    """Names by the functions that they stand in; code outside of functions has no name."""
    found: dict[str, set[str]] = {}
    for file in {own for given in files for own in script_files(given)}:
        tree = parse(file.read_bytes())
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, Function | ast.Module):
                name = "" if isinstance(node, ast.Module) else node.name
                found.setdefault(name, set()).update(_names(node))
    return found


def _names(piece: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(piece):
        match node:
            case (
                ast.Attribute(attr="step" | "backward" | "grad") | ast.Name(id="backward" | "grad")
            ):
                found.add(_TRAINS)
            case ast.Yield() | ast.YieldFrom():
                found.add(_TRAINS)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                found.add(name)
    return found
