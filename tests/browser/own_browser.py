"""Debian's Chromium, the server whose pages it opens, and what a page asked for and reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from commands import LIMIT, TORCH, start, until
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that a page which took it for markup would ask for, and complain of."""
SCRIPT = f"""{TORCH}
import phalanx

torch.set_num_threads(1)
inputs, labels = torch.randn(640, 16), torch.randint(2, (640,))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.05))
for epoch in run.epochs(EPOCHS):
    for x, y in run.batches((inputs, labels), batch=32):
        time.sleep(0.01)
        run.backward(F.cross_entropy(model(x), y))
        run.step()
    print("{HOSTILE} of epoch", epoch, flush=True)
    run.log(test_accuracy=0.5, **{{"{HOSTILE}": float(epoch)}})
"""
_TELLS = """
document.addEventListener("securitypolicyviolation",
  (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def needed(found: bool, what: str) -> None:
    """A test cannot go on without ``what``: in CI it fails, elsewhere it is skipped."""
    if found:
        return
    if os.environ.get("CI"):
        pytest.fail(f"there is no {what}")
    pytest.skip(f"there is no {what}")


def train(folder: Path, epochs: int) -> subprocess.Popen[str]:
    """Start a run of two workers in ``folder``; what it says is in ``said.txt`` there."""
    (folder / "train.py").write_text(SCRIPT.replace("EPOCHS", str(epochs)))
    with (folder / "said.txt").open("w") as out:
        return start("run", "train.py", "--workers", "2", cwd=folder, out=out)


class Watching:
    """``phalanx watch`` for the runs of a folder, in a process of its own."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        words = ("watch", "--json", "--no-browser", "--port", str(port))
        self._process = start(*words, cwd=folder)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert '"address"' in line, line + self._process.communicate(timeout=LIMIT)[1]
        self.address: str = json.loads(line)["address"].partition("#")[0]
        self.port = urlsplit(self.address).port or 0
        # The address lets one visitor in; others come with what that one was given.
        self.cookies: Any = []

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=10)
            raise


@contextmanager
def watching(folder: Path, port: int = 0) -> Iterator[Watching]:
    server = Watching(folder, port)
    try:
        yield server
    finally:
        server.end()


class Visit:
    """A page, let in by the printed address, with all that it asked for and complained of."""

    def __init__(self, context: BrowserContext, server: Watching) -> None:
        context.add_init_script(_TELLS)
        self.base = f"http://127.0.0.1:{server.port}/"
        self.page: Page = context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self._dismiss(dialog))
        if server.cookies:
            context.add_cookies(server.cookies)
            self.page.goto(self.base)
        else:
            self.page.goto(server.address)
            server.cookies = context.cookies()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _dismiss(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, place: str, ready: str) -> None:
        """Open the page of an address below ``#/``, until an element ``ready`` is there."""
        self.page.goto(f"{self.base}#/{place}")
        self.page.wait_for_selector(ready, timeout=30_000)

    def asked_elsewhere(self) -> list[str]:
        return [url for url in self.asked if not url.startswith((self.base, "blob:"))]

    def is_wider_than_the_window(self) -> bool:
        found = self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        return bool(found)

    def findings(self) -> list[str]:
        """What axe finds serious or critical on this page as it is now."""
        if not self.page.evaluate("typeof window.axe === 'object'"):
            source = resources.files("axe_playwright_python") / "axe.min.js"
            self.page.evaluate(source.read_text(encoding="utf-8"))
        answer = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{found['id']} ({found['impact']}): {node['html'][:200]}"
            for found in answer["violations"]
            if found["impact"] in ("serious", "critical")
            for node in found["nodes"][:3]
        ]


@contextmanager
def visit(
    browser: Browser, server: Watching, width: int = 1280, theme: str = "light"
) -> Iterator[Visit]:
    """A new visitor: ``theme`` is what the system prefers."""
    size: Any = {"width": width, "height": 844}
    scheme: Any = theme
    context = browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
    context.set_default_timeout(30_000)
    try:
        yield Visit(context, server)
    finally:
        context.close()


def run_ids(folder: Path) -> list[str]:
    """The runs of a folder, by name."""
    home = folder / "runs"
    return sorted(path.name for path in home.iterdir() if (path / "launch.json").is_file())


def until_training(folder: Path) -> str:
    """Wait until the only run of ``folder`` trains; return its name."""
    until(lambda: (folder / "runs").is_dir() and bool(run_ids(folder)))
    (run,) = run_ids(folder)
    until(lambda: any((folder / "runs" / run / "events").glob("rank-*.jsonl")))
    return run
