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
