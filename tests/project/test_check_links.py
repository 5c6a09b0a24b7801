from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "check_links.py"
    spec = importlib.util.spec_from_file_location("check_links", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = """\
# The `first` title: with (marks)!
[there](docs/a.md) [anchor](docs/a.md#two-words) [own](#the-first-title-with-marks)
[![image](docs/pic.svg)](docs/a.md#two-words-1) <a href="docs/a.md#made">html</a>
[elsewhere](https://example.org/x#y) [mail](mailto:a@b.c) `[code](nowhere.md)` [folder](docs)
[named]

[named]: docs/a.md "title"

```
[fenced](nowhere.md)
```
"""
OTHER = '## Two words\n## Two words\n<a id="made"></a> [up](../README.md)\n'


def write(root: Path, readme: str) -> None:
    (root / "docs").mkdir()
    (root / "README.md").write_text(readme)
    (root / "docs" / "a.md").write_text(OTHER)
    (root / "docs" / "pic.svg").write_text("<svg/>")


def test_links_that_lead_somewhere_are_left_alone(checker: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert checker.check(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "[gone](docs/b.md)",
        "[anchor](docs/a.md#three-words)",
        "[own](#nothing)",
        "![image](docs/none.png)",
        "[outer [inner]](docs/none.md)",
        '<img src="docs/none.svg">',
        "[ref]: docs/none.md",
        "[out](../../etc/passwd)",
    ],
)
def test_a_broken_link_is_named_with_its_line(
    checker: ModuleType, tmp_path: Path, line: str
) -> None:
    write(tmp_path, f"# Title\n\n{line}\n")
    (broken,) = checker.check(tmp_path)
    assert broken.startswith("README.md:3: ")


def test_a_list_that_the_site_would_not_show_is_named(checker: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "# Title\n\nSome words:\n- a list\n")
    (broken,) = checker.check(tmp_path)
    assert broken.startswith("README.md:4: ")


def test_layout_and_architecture_are_those_of_the_tree(checker: ModuleType, tmp_path: Path) -> None:
    for room in ("core", "sync", "sync/arena", "plan"):
        (tmp_path / "src/phalanx" / room).mkdir(parents=True)
        (tmp_path / "src/phalanx" / room / "__init__.py").touch()
    layout = (
        "## Layout\n```\nsrc/phalanx/\n  core/  words\n    spec/\n  sync/  more\n    arena/\n```\n"
    )
    (tmp_path / "CONTRIBUTING.md").write_text(layout)
    (tmp_path / "docs/explanation").mkdir(parents=True)
    page = "`core/`, `sync/arena/`, `sync/gone.py`, [a link](../other/)\n"
    (tmp_path / "docs/explanation/architecture.md").write_text(page)
    assert [line.split("phalanx/")[1] for line in checker.layout(tmp_path)] == [
        "core/spec/ is in the layout only",
        "plan/ is not in the layout",
    ]
    assert [line.split(": ")[1] for line in checker.named_files(tmp_path)] == [
        "there is no sync/gone.py",
        "plan/ is not named",
    ]
    (gone,) = checker.lost_files(tmp_path)
    assert gone == "docs/explanation/architecture.md:1: there is no sync/gone.py"


def test_the_navigation_has_every_page_once(checker: ModuleType, tmp_path: Path) -> None:
    for name in ("index", "how/a", "how/b", "how/c", "notes/01", "notes/README"):
        path = tmp_path / "docs" / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    navigation = "  - index.md\n  - Do:\n      - how/a.md\n      - how/a.md\n      - how/d.md\n"
    rest = "  - CHANGELOG.md\n  - notes/README.md\nnot_in_nav: |\n  notes/0*.md\n  how/c.md\n"
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\nnav:\n{navigation}{rest}")
    assert list(checker.unlisted_pages(tmp_path)) == [
        "mkdocs.yml: the navigation has how/a.md 2 times, instead of once",
        "mkdocs.yml: the navigation has how/b.md 0 times, instead of once",
        "mkdocs.yml: there is no page how/d.md",
    ]
