"""Finds in a script's source whether it may write to weights itself, besides its optimizer.

Workers on one host share the memory of the weights where they can. What each of them writes there
would be written several times, so that a script that writes gets a copy for each worker. Too often
is harmless: a copy costs little.
"""

from __future__ import annotations

import ast
from pathlib import Path

from phalanx.core.script.script_imports import parse, script_files

_HARMLESS = {"requires_grad_", "zero_", "detach_", "share_memory_", "register_buffer_", "_"}
_WRITES = {"load_state_dict", "prune", "remove_parametrizations", "vector_to_parameters"}


def may_write_weights(script: Path) -> bool:
    """Whether the script and the modules under its folder may write weights."""
    for file in script_files(script):
        try:
            tree = parse(file.read_bytes())
        except OSError:
            return True
        if tree is None or any(_writes(node) for node in ast.walk(tree)):
            return True
    return False


def _writes(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=owner)):
            in_place = name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
            return (in_place and not _is_gradient(owner)) or name in _WRITES
        case ast.Attribute(attr="data", ctx=ast.Store()):
            return True
        case ast.AugAssign(target=ast.Attribute(attr="data" | "weight" | "bias")):
            return True
        case ast.Subscript(value=ast.Attribute(attr="data" | "weight" | "bias"), ctx=ast.Store()):
            return True
    return False


def _is_gradient(owner: ast.AST) -> bool:
    return isinstance(owner, ast.Attribute) and owner.attr == "grad"
