"""Every message of the source, to be read as a list: ``python tests/list_messages.py``.

Prints ``file:line: text`` for sentences in string literals, and the docstrings of verbs, which are
their help; values that are filled in stand in braces. The last line, alone with ``--count``, counts
words that plain English does without.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "phalanx"
UNWANTED = ("told", "nobody", "whoever")
SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;.)'}]* [({'–-]*[A-Za-z]{2,}|[A-Za-z]{3,}.*\} [a-z]{3,}")
NOT_PROSE = re.compile(r"^\s*(SELECT |import |def |from \w+ import|<|@|\.)|[{;]\s*\n")


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """A literal as it is read; what an f-string fills in stands in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = (
        str(part.value)
        if isinstance(part, ast.Constant)
        else f"{{{ast.unparse(part.value if isinstance(part, ast.FormattedValue) else part)}}}"
        for part in node.values
    )
    return "".join(parts)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_bytes())
    nodes = list(ast.walk(tree))
    hidden = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    hidden |= {
        id(part)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in hidden:
            text = text_of(node)
            if SENTENCE.search(text) and not NOT_PROSE.search(text):
                yield node.lineno, text
    if path.parent.name in ("verbs", "machines") and path.parents[1].name == "cli":
        yield from verb_helps(tree)


def verb_helps(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            takes_options = "Annotated" in ast.unparse(node.args) or node.decorator_list
            if takes_options and not node.name.startswith("_"):
                yield node.lineno, text


def _without_values(text: str) -> str:
    """Names of variables are not read by users."""
    while (shorter := re.sub(r"\{[^{}]*\}", "", text)) != text:
        text = shorter
    return text


def main() -> int:
    found: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in sorted(messages(path)):
            found.append(text)
            if "--count" not in sys.argv:
                print(f"{path.relative_to(ROOT)}:{line}: {' '.join(text.split())}")
    shown = "\n".join(map(_without_values, found))
    counts = {word: len(re.findall(rf"\b{word}\b", shown, re.IGNORECASE)) for word in UNWANTED}
    print(f"{len(found)} messages; {', '.join(f'{word}: {n}' for word, n in counts.items())}")
    return 1 if any(counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
