"""Every page of finished runs: what it shows, that it is text, by keyboard, for screen readers, and
on a phone."""

from __future__ import annotations

import csv
from pathlib import Path
from urllib.parse import quote

import pytest
from own_browser import HOSTILE, Visit, Watching, run_ids, visit
from playwright.sync_api import Browser

CHART = "figure[data-chart=loss]"
STRANGE = quote(HOSTILE, safe="")


def _pages(folder: Path) -> dict[str, str]:
    """Where the pages are, each with an element that is there when it is complete."""
    hostile, run = sorted(run_ids(folder), key=lambda name: name != HOSTILE)
    assert hostile == HOSTILE
    return {
        "runs": "table tbody tr",
        f"run/{STRANGE}": f"{CHART} canvas",
        f"run/{run}/cluster": "figure canvas",
        f"run/{run}/timeline": "#timeline-words:has-text('steps')",
        f"compare/{run},{STRANGE}": f"{CHART} canvas",
    }


def _is_good(visitor: Visit) -> None:
    assert visitor.complaints == []
    assert visitor.asked_elsewhere() == []


def test_a_visitor_goes_through_all_pages(
    browser: Browser, server: Watching, finished: Path
) -> None:
    with visit(browser, server) as visitor:
        page = visitor.page
        page.wait_for_selector("table tbody tr")
        page.fill("#filter", "nothing is called this")
        page.wait_for_selector("text=No run matches the filter.")
        page.fill("#filter", "")
        for tick in page.locator("table input[type=checkbox]").all():
            tick.check()
        page.click("text=Compare 2 runs")
        page.wait_for_selector(f"{CHART} .legend li:nth-child(2)")
        assert page.locator("th:has-text('Samples/s')").count() == 1
        page.click("nav >> text=Runs")
        page.click("table tbody tr >> nth=0 >> a")
        page.wait_for_selector(f"{CHART} canvas")
        for title, ready in (("Cluster", "figure canvas"), ("Timeline", "canvas.timeline")):
            page.click(f"nav >> text={title}")
            page.wait_for_selector(ready)
        page.click("text=One step")
        page.wait_for_function(
            "/, step \\d+\\.$/.test(document.querySelector('#timeline-words').textContent)"
        )
        _is_good(visitor)


def test_what_a_run_says_is_text(browser: Browser, server: Watching, finished: Path) -> None:
    with visit(browser, server) as visitor:
        for place, ready in _pages(finished).items():
            visitor.open(place, ready)
            visitor.page.wait_for_timeout(300)
            assert visitor.page.locator("img").count() == 0
        visitor.open(f"run/{STRANGE}", "figure[data-chart=metrics] canvas")
        for part in ("h1", "figure[data-chart=metrics] .legend", "pre.log"):
            visitor.page.wait_for_selector(f"{part}:has-text('{HOSTILE}')")
        _is_good(visitor)


def test_a_chart_is_saved_as_csv(browser: Browser, server: Watching, finished: Path) -> None:
    pages = list(_pages(finished))
    with visit(browser, server) as visitor:
        for place, series in ((pages[1], 1), (pages[-1], 2)):
            visitor.open(place, f"{CHART} canvas")
            with visitor.page.expect_download() as download:
                visitor.page.click(f"{CHART} .tools a")
            with Path(download.value.path()).open(newline="") as file:
                rows = list(csv.reader(file))
            assert len(rows[0]) > series
            assert len(rows) > 5
        _is_good(visitor)


def test_all_can_be_done_by_keyboard(browser: Browser, server: Watching, finished: Path) -> None:
    with visit(browser, server) as visitor:
        page, press = visitor.page, visitor.page.keyboard.press
        page.wait_for_selector("table tbody tr")
        press("Tab")
        assert page.evaluate("document.activeElement.id") == "skip"
        press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        press("/")
        assert page.evaluate("document.activeElement.id") == "filter"
        page.keyboard.type("train?")
        assert page.input_value("#filter") == "train?", "keys that are typed are no shortcuts"
        visitor.open(f"run/{STRANGE}", f"{CHART} canvas")
        press("?")
        assert page.locator("#help").is_visible()
        press("Escape")
        press("l")
        assert page.get_attribute(f"{CHART} .tools button", "aria-pressed") == "true"
        before = page.get_attribute("html", "data-theme")
        press("t")
        assert page.get_attribute("html", "data-theme") != before
        page.focus(f"{CHART} .plot")
        press("Home")
        assert (page.text_content("#said") or "").startswith("0:0")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "what has the focus can be seen"
        press("+")
        assert page.locator("main >> text=Whole run").is_visible()
        press("Escape")
        press("4")
        page.wait_for_selector("canvas.timeline")
        page.focus("canvas.timeline")
        wide = page.text_content("#timeline-words")
        press("+")
        page.wait_for_function(
            "(words) => document.querySelector('#timeline-words').textContent !== words", arg=wide
        )
        _is_good(visitor)


def test_every_control_has_the_focus_in_turn(
    browser: Browser, server: Watching, finished: Path
) -> None:
    reached = """() => {
      const all = [...document.querySelectorAll("a[href], button, input, select, [tabindex='0']")];
      const seen = all.filter((node) => node.checkVisibility() && node.type !== "radio");
      const left = seen.filter((node) => !window.had.has(node));
      return [left.map((node) => node.outerHTML), seen.length];
    }"""
    with visit(browser, server) as visitor:
        visitor.open(f"run/{STRANGE}", "figure[data-chart=time_split] canvas")
        page = visitor.page
        page.evaluate(
            "window.had = new Set(); addEventListener('focusin', (e) => had.add(e.target))"
        )
        count = page.evaluate(reached)[1]
        for _ in range(count + 10):
            page.keyboard.press("Tab")
        assert page.evaluate(reached)[0] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    browser: Browser, server: Watching, finished: Path, theme: str
) -> None:
    with visit(browser, server, theme=theme) as visitor:
        for place, ready in _pages(finished).items():
            visitor.open(place, ready)
            visitor.page.wait_for_timeout(500)
            assert (place, visitor.findings()) == (place, [])
        visitor.page.keyboard.press("?")
        assert visitor.findings() == []
        _is_good(visitor)


def test_a_phone_shows_all_without_scrolling_sideways(
    browser: Browser, server: Watching, finished: Path
) -> None:
    with visit(browser, server, width=390) as visitor:
        for place, ready in _pages(finished).items():
            visitor.open(place, ready)
            visitor.page.wait_for_timeout(300)
            assert not visitor.is_wider_than_the_window(), place
            assert visitor.findings() == []
        _is_good(visitor)
