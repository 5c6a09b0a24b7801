"""What the site needs beyond mkdocs: pages and examples from outside ``docs/``, GitHub's anchors.

The same Markdown is read in the repository and on the site: links that leave ``docs/`` are made
to lead to copies inside the site, and headings get the anchors that ``tests/check_links.py`` knows.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
UP = re.compile(r"\]\(((?:\.\./)+)(?=CONTRIBUTING\.md|CHANGELOG\.md|examples/)")

sys.path.insert(0, str(ROOT / "tests"))
from check_links import slug  # noqa: E402


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"]["slugify"] = lambda heading, _separator: slug(heading)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in [*map(ROOT.joinpath, PAGES), *sorted((ROOT / "examples").rglob("*.py"))]:
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return UP.sub(lambda found: f"]({found[1].removeprefix('../')}", markdown)
