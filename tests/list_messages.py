"""Every message of the source, to be read as a list: ``python tests/list_messages.py``.

Prints ``file:line: kind: text`` for causes and remedies of errors, help texts, and other sentences
in string literals; values that are filled in stand in braces. ``--docstrings`` adds the docstrings
of modules. The last line counts words that plain English does without.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "phalanx"
UNWANTED = ("told", "nobody", "whoever")
SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;.)'}]* [({'–-]*[A-Za-z]{2,}|[A-Za-z]{3,}.*\} [a-z]{3,}")
NOT_PROSE = re.compile(r"^\s*(SELECT |import |def |from \w+ import|<|@|\.)|[{;]\s*\n")
ERROR = re.compile(r"(Error|Lost|Stopped|NotFinite|Refused|Problem|Finding|Contradiction)$")


class Message(NamedTuple):
    place: str
    kind: str
    text: str


def text_of(node: ast.expr) -> str | None:
    """A literal as it is read; what an f-string fills in stands in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (
            str(part.value) if isinstance(part, ast.Constant) else f"{{{_inner(part)}}}"
            for part in node.values
        )
        return "".join(parts)
    return None


def _inner(part: ast.expr) -> str:
    return ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ast.unparse(part)


def _docstrings(tree: ast.Module) -> set[int]:
    """Literals that stand as statements: they explain the code, and are not shown."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def _kinds(tree: ast.Module) -> dict[int, str]:
    """What literals are for, where the call that takes them tells."""
    kinds: dict[int, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if ERROR.search(name):
            for argument, kind in zip(node.args, ("cause", "hint"), strict=False):
                kinds.update((id(inner), kind) for inner in ast.walk(argument))
        for keyword in node.keywords:
            if keyword.arg in ("help", "summary", "epilog"):
                kinds.update((id(inner), "help") for inner in ast.walk(keyword.value))
    return kinds


def messages(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_bytes())
    where, hidden, kinds = path.relative_to(ROOT), _docstrings(tree), _kinds(tree)
    inner = {
        id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in ast.walk(n)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in hidden:
            continue
        if isinstance(node, ast.Constant) and id(node) in inner:
            continue
        text = text_of(node)
        if text and SENTENCE.search(text) and not NOT_PROSE.search(text):
            yield Message(f"{where}:{node.lineno}", kinds.get(id(node), "text"), text)
    yield from verb_helps(path, tree)


def verb_helps(path: Path, tree: ast.Module) -> Iterator[Message]:
    """The docstring of a verb is its help text."""
    if path.parent.name not in ("verbs", "machines") or path.parents[1].name != "cli":
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            takes_options = "Annotated" in ast.unparse(node.args) or node.decorator_list
            if takes_options and not node.name.startswith("_"):
                yield Message(f"{path.relative_to(ROOT)}:{node.lineno}", "help", text)


def modules(path: Path) -> Iterator[Message]:
    if text := ast.get_docstring(ast.parse(path.read_bytes())):
        yield Message(f"{path.relative_to(ROOT)}:1", "module", text)


def _without_values(text: str) -> str:
    """Names of variables are not read by users."""
    while (shorter := re.sub(r"\{[^{}]*\}", "", text)) != text:
        text = shorter
    return text


def main() -> int:
    found: list[Message] = []
    for path in sorted(SOURCE.rglob("*.py")):
        found.extend(sorted(messages(path), key=lambda one: int(one.place.rpartition(":")[2])))
        if "--docstrings" in sys.argv:
            found.extend(modules(path))
    for place, kind, text in [] if "--count" in sys.argv else found:
        print(f"{place}: {kind}: {' '.join(text.split())}")
    shown = "\n".join(_without_values(one.text) for one in found)
    counts = {word: len(re.findall(rf"\b{word}\b", shown, re.IGNORECASE)) for word in UNWANTED}
    print(f"{len(found)} messages; {', '.join(f'{word}: {n}' for word, n in counts.items())}")
    return 1 if any(counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
