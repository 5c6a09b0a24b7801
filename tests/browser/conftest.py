"""What tests in a browser share. They start real runs, and need Debian's Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from own_browser import Watching
    from playwright.sync_api import Browser

HERE = Path(__file__).parent
LIBRARIES = ("playwright", "axe_playwright_python")
HAS_LIBRARIES = all(find_spec(name) is not None for name in LIBRARIES)
# Without the extra "browser" nothing here can even be imported.
collect_ignore_glob = [] if HAS_LIBRARIES else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from own_browser import CHROMIUM, OPTIONS, needed
    from playwright.sync_api import sync_playwright

    needed(CHROMIUM.exists(), f"browser {CHROMIUM} (apt-get install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, and a copy of it under a hostile name."""
    from own_browser import HOSTILE, run_ids, train

    folder = tmp_path_factory.mktemp("finished")
    process = train(folder, epochs=4)
    assert process.wait(timeout=200) == 0, (folder / "said.txt").read_text()
    (run,) = run_ids(folder)
    shutil.copytree(folder / "runs" / run, folder / "runs" / HOSTILE)
    return folder


@pytest.fixture(scope="module")
def server(finished: Path) -> Iterator[Watching]:
    """``phalanx watch`` for finished runs."""
    from own_browser import watching

    with watching(finished) as started:
        yield started
