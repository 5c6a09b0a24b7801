"""The pages about strategies say what the program knows: every name, option, default, codec."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.core.spec.codecs import known_codecs
from phalanx.core.spec.keys import Key
from phalanx.core.spec.strategies import ALIASES, PLANNED, known_strategies

DOCS = Path(__file__).parents[4] / "docs"
PAGES = DOCS / "explanation" / "strategies"
REFERENCE = (DOCS / "reference" / "strategies.md").read_text(encoding="utf-8")
OPTIONS = [(n, k, key) for n, t in known_strategies().items() for k, key in t.keys.items()]
CODEC_OPTIONS = [(n, k, key) for n, t in known_codecs().items() for k, key in t.keys.items()]


def _table(heading: str) -> dict[str, dict[str, str]]:
    """A table as name -> option -> its row; rows without a name belong to the one above."""
    section = REFERENCE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: dict[str, dict[str, str]] = {}
    name = ""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0] in ("name", "---"):
            continue
        if named := re.match(r"\[`(\w+)`\]", cells[0]):
            name = named[1]
            found[name] = {}
        if option := re.fullmatch(r"`(\w+)`", cells[1]):
            found[name][option[1]] = line
    return found


def _default(key: Key) -> str:
    """The default is the last thing in a key's summary: ``steps ahead of the slowest (3)``."""
    stated = re.search(r"\(([^()]+)\)$", key.summary)
    assert stated is not None, key.summary
    return stated[1]


def test_the_table_has_every_strategy_and_no_other() -> None:
    assert set(_table("Strategies")) == {*known_strategies(), "switch"}


def test_the_table_has_every_codec_and_no_other() -> None:
    assert set(_table("Codecs")) == set(known_codecs())


@pytest.mark.parametrize(("heading", "names"), [("Strategies", OPTIONS), ("Codecs", CODEC_OPTIONS)])
def test_every_option_is_there_with_its_default(
    heading: str, names: list[tuple[str, str, Key]]
) -> None:
    table = _table(heading)
    for name, option, key in names:
        assert f"`{_default(key)}`" in table[name][option], f"{name}:{option}"
    wanted = {(name, option) for name, option, _ in names}
    told = {(n, o) for n, options in table.items() for o in options if n != "switch"}
    assert told == wanted


@pytest.mark.parametrize("name", [*ALIASES, *PLANNED])
def test_other_names_are_told(name: str) -> None:
    assert f"`{name}`" in REFERENCE


@pytest.mark.parametrize("name", [*known_strategies(), "switch", "balance", "codecs"])
def test_every_strategy_has_a_page_with_a_picture_and_figures(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n")
    assert "## Figures" in page and "## What happens to" in page
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert pictures
    for picture in pictures:
        assert (PAGES / picture).is_file()


@pytest.mark.parametrize(("name", "option", "key"), OPTIONS)
def test_a_page_tells_the_options_of_its_strategy(name: str, option: str, key: Key) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"| `{option}` | `{_default(key)}` |" in page


def test_every_codec_has_a_section() -> None:
    page = (PAGES / "codecs.md").read_text(encoding="utf-8")
    for name, traits in known_codecs().items():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for option, key in traits.keys.items():
            assert f"`{option}`" in section
            assert f"| `{option}` ({_default(key)}) |" in page
