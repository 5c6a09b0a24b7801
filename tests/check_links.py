"""The documentation is true of the tree: ``python tests/check_links.py``.

Looks at README.md, CONTRIBUTING.md, CHANGELOG.md and docs/**/*.md: relative links and anchors lead
somewhere, lists are set off (or the site shows none), mkdocs.yml names every
page once, the layout in CONTRIBUTING.md names every
folder of the source and no other, and the files named in architecture.md exist. Prints
``file:line: what is broken`` and exits 1 if anything is.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatch
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
ITEM = re.compile(r"^(?:[-*+]|\d+\.)\s")
ARCHITECTURE = "docs/explanation/architecture.md"
SOURCE = "src/phalanx"
NAMED = re.compile(r"(?<![\w./-])(?:[\w.-]+/)+(?:\w+\.py)?(?![\w/])")
CODE = re.compile(r"(?<![\w./-])(?:src/phalanx/)?(?:[a-z_]+/)+\w+\.py(?!\w)")
OF_A_RUN = ("runs/", "events/", "remote/")
"""Folders that are named in the architecture and are not of the source."""


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


def hidden_lists(path: Path) -> Iterator[tuple[int, str]]:
    """Lists that follow a paragraph at once: the site takes them for a part of it."""
    before, inside = "", False
    for number, line in prose(path):
        if ITEM.match(line):
            if before.strip() and not inside:
                yield number, "a list needs an empty line before it"
            inside = True
        elif not line.strip():
            inside = False
        before = line


def unlisted_pages(root: Path) -> Iterator[str]:
    """Pages that the site's navigation leaves out or names twice; names that have no page."""
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    navigation, _, elsewhere = text.partition("\nnav:\n")[2].partition("\nnot_in_nav:")
    named = re.findall(r"^ *- (\S+\.md)$", navigation, re.MULTILINE)
    docs = root / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    left_out = {page for page in pages if any(fnmatch(page, p) for p in elsewhere.split())}
    for name in sorted({*named} | pages):
        if name not in pages | {*TOP}:
            yield f"mkdocs.yml: there is no page {name}"
        elif named.count(name) + (name in left_out) != 1:
            times = named.count(name)
            yield f"mkdocs.yml: the navigation has {name} {times} times, instead of once"


def rooms(root: Path) -> set[str]:
    source = root / SOURCE
    return {f"{path.parent.relative_to(source)}/" for path in source.glob("*/**/__init__.py")}


def layout(root: Path) -> Iterator[str]:
    """Folders that CONTRIBUTING.md names and the source has not, or the other way round."""
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.partition("## Layout")[2].partition(f"{SOURCE}/\n")[2].partition("```")[0]
    named: set[str] = set()
    top = ""
    for line in block.splitlines():
        if line.startswith("    "):
            named.update(f"{top}{name}" for name in line.split())
        elif line.startswith("  "):
            top = line.split()[0]
            named.add(top)
        elif not (root / line.split()[0]).is_dir():
            yield f"CONTRIBUTING.md: there is no folder {line.split()[0]}"
    for name in sorted(named ^ rooms(root)):
        what = "is not in the layout" if name in rooms(root) else "is in the layout only"
        yield f"CONTRIBUTING.md: {SOURCE}/{name} {what}"


def named_files(root: Path) -> Iterator[str]:
    """Files and folders that the architecture names and the tree has not; rooms it leaves out."""
    text = (root / ARCHITECTURE).read_text(encoding="utf-8")
    without_links = re.sub(r"\]\([^)]*\)", "]", text)
    named = {name for name in NAMED.findall(without_links) if not name.startswith(OF_A_RUN)}
    for name in sorted(named):
        if not (root / SOURCE / name).exists() and not (root / name).exists():
            yield f"{ARCHITECTURE}: there is no {name}"
    for name in sorted(rooms(root) - named):
        if not any(other.startswith(name) for other in rooms(root) - {name}):
            yield f"{ARCHITECTURE}: {name} is not named"


def lost_files(root: Path) -> Iterator[str]:
    """Source files and tests that some page names, in `code`, and the tree has not."""
    tops = tuple(f"{path.name}/" for path in (root / SOURCE).iterdir() if path.is_dir())
    for path in documents(root):
        for number, line in prose(path):
            for name in CODE.findall(line):
                if not name.startswith(("src/", "tests/", *tops)):
                    continue
                if not (root / SOURCE / name).exists() and not (root / name).exists():
                    yield f"{path.relative_to(root)}:{number}: there is no {name}"


def check(root: Path) -> list[str]:
    broken = []
    for path in documents(root):
        for number, link in links(path):
            if why := problem(root, path, link):
                broken.append(f"{path.relative_to(root)}:{number}: {why}")
        for number, why in hidden_lists(path):
            broken.append(f"{path.relative_to(root)}:{number}: {why}")
    return broken


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    broken = [
        *check(root),
        *unlisted_pages(root),
        *layout(root),
        *named_files(root),
        *lost_files(root),
    ]
    print(
        "\n".join(broken)
        or f"{len(documents(root))} documents, every link and path leads somewhere"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
