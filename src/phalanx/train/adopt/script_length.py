"""Finds how often a script will go through its data, from the loops around the present pass.

Only a strategy that switches at a share of the training has to know, and the progress shows it. A
loop counts if it is over a ``range`` (also in ``tqdm`` or ``enumerate``) whose bounds can be read
from the script's variables without calling anything.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import math
import operator
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

from phalanx.core.script.script_imports import function_at, parse
from phalanx.core.script.training_code import may_train
from phalanx.train.adopt.libraries import COUNTING
from phalanx.train.files.calling_code import caller_of, kind_of

_WRAPPERS = {"tqdm", "trange", "track", "enumerate", "progress_bar", "notebook_tqdm"}
_DROPS = {dis.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in dis.opmap}
_CALLS = {
    dis.opmap[name]
    for name in ("CALL", "PRECALL", "CALL_FUNCTION_EX", "CALL_KW", "RAISE_VARARGS", "RERAISE")
    if name in dis.opmap
}
_OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class UnknownError(Exception):
    pass


def passes_of(frame: FrameType | None) -> int | None:
    """Return the product of the lengths of the loops around ``frame``'s line and its callers'
    lines, without the loop over the batches, whose head is such a line."""
    total, found = 1, False
    while frame is not None:
        loops = list(loops_around(frame))
        for loop in loops:
            if not found and is_head(loop, frame.f_lineno):
                continue  # this is the pass itself
            count = _count(loop, frame)
            if count is None:
                return None
            total, found = total * count, True
        epochs = None if loops else _epochs_of_lightning(frame)
        if epochs is not None:
            total, found = total * epochs, True
        frame = frame.f_back
    return total if found else None


def _epochs_of_lightning(frame: FrameType) -> int | None:
    """Return how many passes Lightning's loop makes; the first begins outside of its ``while``."""
    loop = frame.f_locals.get("self")
    if frame.f_code.co_name != "run" or type(loop).__name__ != "_FitLoop":
        return None
    most = getattr(loop, "__dict__", {}).get("max_epochs")
    return most if isinstance(most, int) and most > 0 else None


def is_head(loop: ast.For | ast.While, line: int) -> bool:
    if not isinstance(loop, ast.For):
        return False
    return line <= (loop.iter.end_lineno or line) < loop.body[0].lineno


def needs_equal_batches(frame: FrameType | None) -> bool:
    """Whether all workers need equally many batches of the present pass: the script's loop may
    leave it early, or a library's loop takes as many as the loader has."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(COUNTING):
            return True
        if caller_of(frame) == "script":
            heads = (loop for loop in loops_around(frame) if is_head(loop, frame.f_lineno))
            if any(_leaves(node) for head in heads for node in head.body):
                return True
        frame = frame.f_back
    return False


def loop_may_train(frame: FrameType | None) -> bool:
    """Whether the loop over the present pass may do more than look at its batches; true if the loop
    cannot be read."""
    stack = [f for f, _ in walk_stack(frame) if kind_of(f.f_code.co_filename) == "script"]
    heads = [loop for one in stack[:1] for loop in loops_around(one) if is_head(loop, one.f_lineno)]
    mains = [one for one in stack if one.f_globals.get("__name__") == "__main__"]
    files = frozenset(Path(one.f_code.co_filename) for one in (*stack[:1], *mains[-1:]))
    return not heads or may_train(heads[0].body, files)


def _leaves(node: ast.AST, nested: bool = False) -> bool:
    match node:
        case ast.Return():
            return True
        case ast.Break():
            return not nested
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
            return False
    if isinstance(node, ast.For | ast.While):  # the ``else`` of a loop is outside of it
        outside = any(_leaves(child, nested) for child in node.orelse)
        return outside or any(_leaves(child, True) for child in node.body)
    return any(_leaves(child, nested) for child in ast.iter_child_nodes(node))


def has_left_a_loop(frame: FrameType | None) -> bool:
    """Whether an iterator is being deleted by a ``break`` or ``return``, directly or through
    ``tqdm``, and not by an exception, which leaves a frame at the instruction that raised."""
    return any(one.f_code.co_code[one.f_lasti] in _DROPS for one, _ in walk_stack(frame))


def may_have_failed(frame: FrameType | None) -> bool:
    """Whether an iterator is being deleted perhaps by an exception: the frame is then at the call
    that raised, but at the end of a loop it is not at a call."""
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back  # the frame of tqdm, for example, which is being closed
    return frame is not None and frame.f_code.co_code[frame.f_lasti] in _CALLS


def loops_around(frame: FrameType) -> Iterator[ast.For | ast.While]:
    """Yield the loops around the line of ``frame``, innermost first."""
    inside: list[ast.For | ast.While] = []
    waiting: list[ast.AST] = [*body_of(frame)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.For | ast.While):
            last = max((n.end_lineno or 0) for n in node.body)
            if node.lineno <= frame.f_lineno <= last:
                inside.append(node)
        waiting.extend(ast.iter_child_nodes(node))
    yield from sorted(inside, key=lambda loop: -loop.lineno)


def body_of(frame: FrameType) -> list[ast.stmt]:
    """Return the statements of ``frame``'s function; none if its source cannot be read."""
    code = frame.f_code
    tree = parse("".join(linecache.getlines(code.co_filename, frame.f_globals)).encode())
    if tree is None or code.co_name == "<module>":
        return tree.body if tree else []
    function = function_at(tree, code.co_name, code.co_firstlineno)
    return function.body if function else []


def _count(loop: ast.For | ast.While, frame: FrameType) -> int | None:
    if isinstance(loop, ast.While):
        return _epochs_of_lightning(frame)
    try:
        return _length(loop.iter, frame)
    except (UnknownError, AttributeError, LookupError, TypeError, ValueError, OverflowError):
        return None


def _length(node: ast.expr, frame: FrameType) -> int:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
        if name in ("range", "trange") and node.args:
            return len(range(*(_whole(value_of(arg, frame)) for arg in node.args)))
        if name in _WRAPPERS and node.args:
            return _length(node.args[0], frame)
        raise UnknownError
    value = value_of(node, frame)
    if isinstance(value, range | list | tuple):
        return len(value)
    raise UnknownError


def _whole(value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, int):
        return value
    raise UnknownError


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of an expression of names, attributes of plain objects, and arithmetic."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            for space in (frame.f_locals, frame.f_globals):
                if name in space:
                    return space[name]
        case ast.Attribute(value=owner, attr=name):
            # Call nothing: a property is code of the script.
            found = inspect.getattr_static(value_of(owner, frame), name)
            if hasattr(type(found), "__get__"):
                raise UnknownError
            return found
        case ast.Subscript(value=owner, slice=ast.Constant(value=key)):
            held = value_of(owner, frame)
            if isinstance(held, dict):
                return held[key]
            if isinstance(held, list | tuple) and isinstance(key, int):
                return held[key]
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](value_of(left, frame), value_of(right, frame))
        case ast.Call(func=ast.Name(id="int"), args=[inner]):
            return int(value_of(inner, frame))
    raise UnknownError
