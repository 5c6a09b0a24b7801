"""Which ready-made data sets a script reads, found in its source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.core.script.datasets import FILES
from phalanx.core.script.script_imports import parse, script_files

_LOADS = {"phalanx.data.load", "phalanx.data.load.load"}
_MAYBE = (ast.If, ast.IfExp, ast.Match, ast.Try, ast.BoolOp, ast.ExceptHandler)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass
class Needs:
    """Names of data sets."""

    surely: set[str] = field(default_factory=set)
    """Loaded whatever happens: without them a run cannot do anything."""
    maybe: set[str] = field(default_factory=set)
    """Loaded under a condition."""
    mentioned: set[str] = field(default_factory=set)
    """Known names that occur where what is loaded is unclear."""
    unclear: bool = False
    """There is a call whose name is known only when it runs."""

    @property
    def all(self) -> set[str]:
        return self.surely | self.maybe | self.mentioned


def needs_of(script: Path, words: Sequence[str], *, foreign: bool) -> Needs:
    """What the calls of ``phalanx.data.load`` in the script and its modules name.

    Where a name is no literal, and in scripts of other frameworks, known names count that are
    among the script's ``words``, else those that are strings in its source.
    """
    trees = [tree for file in script_files(script) if (tree := _read(file)) is not None]
    needs, in_functions = Needs(), set()
    for tree in trees:
        bound = dict(_bindings(tree))
        for call, around in _calls(tree, ()):
            if _full_name(call.func, bound) in _LOADS and not _names_folder(call):
                name = _literal(call)
                if name is None:
                    needs.unclear = True
                elif any(isinstance(node, _MAYBE) for node in around):
                    needs.maybe.add(name)
                elif any(isinstance(node, _FUNCTIONS) for node in around):
                    in_functions.add(name)
                else:
                    needs.surely.add(name)
    # Of several functions that each load one nobody can tell which will be called.
    one = len(in_functions | needs.surely | needs.maybe) == 1 and not needs.unclear
    (needs.surely if one else needs.maybe).update(in_functions)
    if needs.unclear or foreign:
        needs.mentioned = _known(words) or _known(_strings(trees))
    needs.maybe -= needs.surely
    return needs


def _read(file: Path) -> ast.Module | None:
    try:
        return parse(file.read_bytes())
    except OSError:
        return None


def _bindings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that imports bind, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _calls(
    node: ast.AST, around: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.Call, tuple[ast.AST, ...]]]:
    """Every call, with the statements and functions around it."""
    if isinstance(node, ast.Call):
        yield node, around
    within = around if _is_main_guard(node) else (*around, node)
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, within)


def _is_main_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def _full_name(node: ast.AST, bound: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, bound)}.{node.attr}"
    return bound.get(node.id, "") if isinstance(node, ast.Name) else ""


def _names_folder(call: ast.Call) -> bool:
    """Then the script knows where its files are."""
    return any(keyword.arg == "folder" for keyword in call.keywords)


def _literal(call: ast.Call) -> str | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    match [*call.args, *named]:
        case [ast.Constant(value=str() as name), *_]:
            return name
    return None


def _strings(trees: Sequence[ast.AST]) -> Iterator[str]:
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _known(texts: Iterable[str]) -> set[str]:
    """``--data=mnist`` and ``datasets/mnist`` both name it."""
    return {part for text in texts for part in text.replace("=", "/").split("/")} & set(FILES)
