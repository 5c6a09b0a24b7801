"""Where in the script's own files something happens, and what the script calls it there."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from torch import nn

from phalanx.core.script.explained import Place
from phalanx.core.script.script_imports import parse
from phalanx.train.adopt.script_length import UnknownError, body_of, value_of

_Node = TypeVar("_Node", bound=ast.AST)
_OURS = str(Path(__file__).parents[2])
_PASS_ON = {"torch", "tqdm", "rich", "alive_progress", "fastprogress", "contextlib", "phalanx"}
"""Their frames may stand between a call of the script and what it leads to."""

_MOST_ITEMS = 100


class ScriptPlaces:
    """Of a script, whose own files are those in its folder."""

    def __init__(self, frame: FrameType | None) -> None:
        self.script = _script_of(frame)
        folder = self.script.parent if self.script else None
        self._folders = [folder, folder.resolve()] if folder else []
        """As it was named, and as imports from it are found."""

    def own(self, frame: FrameType | None) -> list[FrameType]:
        """The frames of the script's own files, the innermost first."""
        found = []
        while frame is not None:
            if self._is_own(frame):
                found.append(frame)
            frame = frame.f_back
        return found

    def library(self, frame: FrameType | None) -> str | None:
        """What stands between ``frame`` and the script's own files, if it does more than pass on
        what it is given."""
        while frame is not None and not self._is_own(frame):
            name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if name not in _PASS_ON:
                return name
            frame = frame.f_back
        return None

    def of(self, frame: FrameType, node: ast.expr | None = None) -> Place:
        code = frame.f_code
        function = "" if code.co_name == "<module>" else code.co_name
        file = Path(code.co_filename)
        for folder in self._folders:
            if file.is_relative_to(folder):
                file = file.relative_to(folder)
        if node is None:
            return Place(
                file=str(file), line=frame.f_lineno, function=function, first=code.co_firstlineno
            )
        return Place(
            file=str(file), line=frame.f_lineno, function=function, first=code.co_firstlineno,
            text=ast.unparse(node),
            span=(node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0),
        )  # fmt: skip

    def _is_own(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if file.startswith((_OURS, "<")) or "site-packages" in file:
            return False
        return any(Path(file).is_relative_to(folder) for folder in self._folders)


def _script_of(frame: FrameType | None) -> Path | None:
    found = None
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__":
            file = frame.f_globals.get("__file__")
            if file and not str(file).startswith(_OURS):
                found = Path(file)
        frame = frame.f_back
    return found


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
    body = _body(frame)
    heads = [node.iter for node in _within(body, ast.For) if _covers(node.iter, frame.f_lineno)]
    calls = [node for node in _within(body, ast.Call) if _covers(node, frame.f_lineno)]
    for node in [*heads, *calls]:
        for part in _given(node):
            if _is(part, frame, loader):
                return part
    names = {part.id for node in heads for part in _given(node) if isinstance(part, ast.Name)}
    for value in reversed(list(_bound_to(names, body, frame.f_lineno))):
        for part in _given(value):
            if _is(part, frame, loader):
                return part
    return None


def step_in(frame: FrameType, optimizer: Any) -> tuple[ast.expr | None, bool]:
    """The optimizer in a call of ``step``, and whether the call is that of a ``GradScaler``."""
    for call in _within(_body(frame), ast.Call):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
            continue
        if _covers(call, frame.f_lineno):
            if _is(call.func.value, frame, optimizer):
                return call.func.value, False
            if call.args and _is(call.args[0], frame, optimizer):
                return call.args[0], True
    return None, False


def _body(frame: FrameType) -> Sequence[ast.stmt]:
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    tree = parse(source.encode()) if source else None
    return body_of(tree, frame) if tree is not None else []


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
