"""Relative links and anchors of the documentation lead somewhere: ``python tests/check_links.py``.

Looks at README.md, CONTRIBUTING.md, CHANGELOG.md and docs/**/*.md; prints ``file:line: what is
broken`` and exits 1 if anything is.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
INLINE = re.compile(
    r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)"
)
REFERENCE = re.compile(r"^ {0,3}\[[^\]^]+\]:\s*<?(\S+?)>?(?:\s|$)")
HTML = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=[\"']([^\"'\s]+)", re.IGNORECASE)
HTML_ANCHOR = re.compile(r"<[a-z]+\b[^>]*?\b(?:id|name)=[\"']([^\"']+)", re.IGNORECASE)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"^\s*(```+|~~~+)")


def documents(root: Path) -> list[Path]:
    top = [root / name for name in TOP if (root / name).exists()]
    return [*top, *sorted((root / "docs").rglob("*.md"))]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines outside fenced code, numbered from 1."""
    fence = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        found = FENCE.match(line)
        if found and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else found[1][:3]
        elif not fence:
            yield number, line


def without_code(line: str) -> str:
    return re.sub(r"(`+).+?\1", "", line)


def links(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in prose(path):
        text = without_code(line)
        for pattern in (INLINE, REFERENCE, HTML):
            for found in pattern.finditer(text):
                yield number, found[1]


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    kept = (c for c in text if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


def anchors(path: Path) -> set[str]:
    found: set[str] = set()
    seen: dict[str, int] = {}
    for _, line in prose(path):
        found.update(match[1] for match in HTML_ANCHOR.finditer(line))
        if heading := HEADING.match(line):
            name = slug(heading[1])
            times = seen.get(name, 0)
            seen[name] = times + 1
            found.add(f"{name}-{times}" if times else name)
    return found


def problem(root: Path, source: Path, link: str) -> str | None:
    """Why ``link`` in ``source`` is broken, or ``None``."""
    if ELSEWHERE.match(link) or link.startswith("//"):
        return None
    name, _, anchor = link.partition("#")
    path = unquote(name.partition("?")[0])
    target = (root / path.lstrip("/") if path.startswith("/") else source.parent / path).resolve()
    if not path:
        target = source
    if not target.exists():
        return f"there is no {link}"
    if root.resolve() not in target.parents and target != root.resolve():
        return f"{link} is outside the repository"
    if anchor and target.suffix == ".md" and unquote(anchor) not in anchors(target):
        return f"{target.name} has no heading #{anchor}"
    return None


def check(root: Path) -> list[str]:
    broken = []
    for path in documents(root):
        for number, link in links(path):
            if why := problem(root, path, link):
                broken.append(f"{path.relative_to(root)}:{number}: {why}")
    return broken


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    broken = check(root)
    print("\n".join(broken) or f"{len(documents(root))} documents, every link leads somewhere")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
