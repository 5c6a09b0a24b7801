"""Questions to the syntax tree of a script."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from phalanx.core.script.script_imports import Function

Loop = ast.For | ast.AsyncFor | ast.While


class ScriptTree:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that ``node`` is in, the innermost first."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def function_of(self, node: ast.AST) -> Function | None:
        return next((n for n in self.around(node) if isinstance(n, Function)), None)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        return next((n for n in self.around(node) if isinstance(n, ast.ClassDef)), None)

    def loops_of(self, node: ast.AST) -> list[Loop]:
        """The loops of its own function that it is in."""
        found = []
        for outer in self.around(node):
            if isinstance(outer, Function):
                break
            if isinstance(outer, Loop):
                found.append(outer)
        return found

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def assigned(self, name: str, line: int) -> ast.Assign | None:
        """The assignment to ``name`` in line ``line``."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign):
                continue
            named = any(getattr(target, "id", None) == name for target in node.targets)
            if named and node.lineno <= line <= (node.end_lineno or 0):
                return node
        return None

    def names(self) -> set[str]:
        found = set()
        for node in ast.walk(self.tree):
            match node:
                case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                    found.add(name)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.alias(name=name, asname=other):
                    found.add(other or name.partition(".")[0])
                case ast.Global(names=several) | ast.Nonlocal(names=several):
                    found |= set(several)
        return found


def path_to(body: Sequence[ast.stmt], line: int) -> list[ast.stmt]:
    """The statements that ``line`` is in, the outermost first; not into functions and classes."""
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or 0):
            continue
        if isinstance(statement, Function | ast.ClassDef):
            return []
        for block in _blocks(statement):
            if inner := path_to(block, line):
                return [statement, *inner]
        return [statement]
    return []


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
        yield part.body
