"""A run is watched while it trains, also when the server is started again in the meantime."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_browser import train, until_training, visit, watching
from playwright.sync_api import Browser, Page

CHART = "figure[data-chart=loss]"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run that goes on for minutes."""
    folder = tmp_path_factory.mktemp("training")
    process = train(folder, epochs=2000)
    try:
        yield folder
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _moves(page: Page) -> None:
    """Wait until the chart and the progress of a run are further than now."""
    seen = page.get_attribute(f"{CHART} .plot", "aria-label")
    told = page.text_content(".so-far")
    page.wait_for_function(
        """([chart, label, words]) =>
          document.querySelector(`${chart} .plot`).getAttribute("aria-label") !== label &&
          document.querySelector(".so-far").textContent !== words""",
        arg=[CHART, seen, told],
    )


def test_charts_move_while_a_run_trains(browser: Browser, training: Path) -> None:
    run = until_training(training)
    with watching(training) as server, visit(browser, server) as visitor:
        visitor.open(f"run/{run}", f"{CHART} canvas")
        assert visitor.page.text_content(".badge") == "● running"
        _moves(visitor.page)
        visitor.page.wait_for_selector("figure[data-chart=throughput] .legend li:nth-child(3)")
        assert visitor.asked_elsewhere() == []
        assert visitor.complaints == []


def test_a_page_connects_again(browser: Browser, training: Path) -> None:
    run = until_training(training)
    with watching(training) as first, visit(browser, first) as visitor:
        visitor.open(f"run/{run}", f"{CHART} canvas")
        _moves(visitor.page)
        first.end()
        visitor.page.wait_for_selector("#notice:has-text('connects again by itself')")
        with watching(training, first.port):
            visitor.page.wait_for_selector("#notice", state="hidden")
            assert visitor.page.text_content("#connection") == "connected"
            _moves(visitor.page)
        assert visitor.asked_elsewhere() == []
        assert not [text for text in visitor.complaints if "ERR_" not in text]


def test_a_page_without_access_says_how_to_get_in(browser: Browser, finished: Path) -> None:
    with watching(finished) as server, visit(browser, server) as visitor:
        visitor.page.wait_for_selector("table a")
        visitor.page.context.clear_cookies()
        visitor.page.reload()
        assert "open the address that it prints" in (visitor.page.text_content("body") or "")
