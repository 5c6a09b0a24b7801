"""Where in the script's own files something happens, and what the script calls it there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, TypeVar

import msgspec
from torch import nn

from phalanx.core.script.explained import Place, span_of
from phalanx.train.adopt.script_length import UnknownError, body_of, value_of
from phalanx.train.files.calling_code import OURS

_Node = TypeVar("_Node", bound=ast.AST)
_PASS_ON = {"torch", "tqdm", "rich", "alive_progress", "fastprogress", "contextlib", "phalanx"}
"""Their frames may stand between a call of the script and what it leads to."""

_MOST_ITEMS = 100


class ScriptPlaces:
    """Of a script, whose own files are those in its folder."""

    def __init__(self, frame: FrameType) -> None:
        spaces = [found.f_globals for found, _ in walk_stack(frame)]
        files = [str(s.get("__file__") or OURS) for s in spaces if s.get("__name__") == "__main__"]
        scripts = [Path(file) for file in files if not file.startswith(OURS)]
        self.script = scripts[-1] if scripts else None
        folder = self.script.parent if self.script else None
        self._folders = [folder, folder.resolve()] if folder else []
        """As it was named, and as imports from it are found."""

    def own(self, frame: FrameType) -> list[FrameType]:
        """The frames of the script's own files, the innermost first."""
        return [found for found, _ in walk_stack(frame) if self._is_own(found)]

    def library(self, frame: FrameType) -> str | None:
        """What stands between ``frame`` and the script's own files, if it does more than pass on
        what it is given."""
        between = takewhile(lambda found: not self._is_own(found[0]), walk_stack(frame))
        names = (str(f.f_globals.get("__name__", "")).partition(".")[0] for f, _ in between)
        return next((name for name in names if name not in _PASS_ON), None)

    def of(self, frame: FrameType, node: ast.expr | None = None) -> Place:
        code = frame.f_code
        function = "" if code.co_name == "<module>" else code.co_name
        file = Path(code.co_filename)
        for folder in self._folders:
            if file.is_relative_to(folder):
                file = file.relative_to(folder)
        place = Place(
            file=str(file), line=frame.f_lineno, function=function, first=code.co_firstlineno
        )
        if node is None:
            return place
        return msgspec.structs.replace(place, text=ast.unparse(node), span=span_of(node))

    def _is_own(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if file.startswith((OURS, "<")) or "site-packages" in file:
            return False
        return any(Path(file).is_relative_to(folder) for folder in self._folders)


def name_in(frame: FrameType, wanted: Any) -> str | None:
    """What the code of ``frame`` calls an object: a name, an attribute of ``self``, or one of a
    list or dictionary that has a name."""
    owner = frame.f_locals.get("self")
    held = dict(getattr(owner, "__dict__", {}))
    if isinstance(owner, nn.Module):
        held |= owner._modules
    spaces = [
        {name: value for name, value in space.items() if not name.startswith("_")}
        for space in (frame.f_locals, frame.f_globals)
    ]
    spaces.append({f"self.{name}": value for name, value in held.items()})
    for space in spaces:
        for name, value in space.items():
            if value is wanted:
                return name
    for space in spaces:
        for name, value in space.items():
            for key, item in _items(value):
                if item is wanted:
                    return f"{name}[{key!r}]"
    return None


def _items(value: Any) -> Iterator[tuple[int | str, Any]]:
    if type(value) in (list, tuple) and len(value) <= _MOST_ITEMS:
        yield from enumerate(value)
    elif type(value) is dict and len(value) <= _MOST_ITEMS:
        yield from ((key, item) for key, item in value.items() if isinstance(key, int | str))


def loader_in(frame: FrameType, loader: Any) -> ast.expr | None:
    """The expression of the loader where ``frame`` begins to go through it."""
    body = body_of(frame)
    heads = [node.iter for node in _within(body, ast.For) if _covers(node.iter, frame.f_lineno)]
    calls = [node for node in _within(body, ast.Call) if _covers(node, frame.f_lineno)]
    names = {part.id for node in heads for part in _given(node) if isinstance(part, ast.Name)}
    bound = reversed(list(_bound_to(names, body, frame.f_lineno)))
    parts = (part for node in (*heads, *calls, *bound) for part in _given(node))
    return next((part for part in parts if _is(part, frame, loader)), None)


def step_in(frame: FrameType, optimizer: Any) -> tuple[ast.expr | None, bool]:
    """The optimizer in a call of ``step``, and whether the call is that of a ``GradScaler``."""
    for call in _within(body_of(frame), ast.Call):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
            continue
        if _covers(call, frame.f_lineno):
            if _is(call.func.value, frame, optimizer):
                return call.func.value, False
            if call.args and _is(call.args[0], frame, optimizer):
                return call.args[0], True
    return None, False


def _within(body: Sequence[ast.stmt], kind: type[_Node]) -> Iterator[_Node]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, kind):
                yield node


def _covers(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _given(node: ast.expr) -> Iterator[ast.expr]:
    """The expression, and what its calls are given to go through: not to count."""
    yield node
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") != "len":
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _given(part)


def _bound_to(names: set[str], body: Sequence[ast.stmt], line: int) -> Iterator[ast.expr]:
    for node in _within(body, ast.Assign):
        if node.lineno < line and any(getattr(t, "id", None) in names for t in node.targets):
            yield node.value
    for block in _within(body, ast.With):
        for item in block.items:
            if block.lineno < line and getattr(item.optional_vars, "id", None) in names:
                yield item.context_expr


def _is(node: ast.expr, frame: FrameType, wanted: Any) -> bool:
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return False
    try:
        return value_of(node, frame) is wanted
    except (UnknownError, AttributeError, LookupError, TypeError, ValueError):
        return False
