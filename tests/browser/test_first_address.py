"""The address that is printed, opened from elsewhere: a file, or a link on another site. A browser
keeps a strict cookie back on such a way, and comes in all the same, on the page that is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import write_run
from playwright.sync_api import Browser
from watch_client import served

from phalanx.cli.watch.watch import fragment, opened_browser

SECONDS = 30_000


def test_a_browser_comes_in_from_elsewhere(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path, "20250102-000000-made")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with served(tmp_path, enter=False) as site:
        with opened_browser(site.addresses[0] + fragment(run)):
            by_file = browser.new_context().new_page()
            by_file.goto(opened[0])
            by_file.wait_for_selector("h1:has-text('made')", timeout=SECONDS)
        referers: list[str] = []
        by_link = browser.new_context().new_page()
        by_link.on("request", lambda each: referers.append(each.headers.get("referer", "")))
        address = site.addresses[1].replace("&", "%26") + fragment(run).replace("#", "%23")
        by_link.goto(f"data:text/html,<a href='{address}'>open</a>")
        by_link.click("a")
        by_link.wait_for_selector("h1:has-text('made')", timeout=SECONDS)
        assert not [text for text in referers if "token" in text]
        assert "token" not in by_link.url
        for page in (by_file, by_link):
            page.context.close()
        assert site.complaints == []
