"""What the pages of ``phalanx watch`` cost: processor time of the server, reading included.

``python -m benchmarks watching [--seconds N] [--pages run,run,run] [--script FILE]``. A run of two
workers trains on digits, or what the script says; the server is a process of its own. Each page
listens to the run's events, and asks for what it shows whenever there is more, as the pages in a
browser do. Before that the same run goes on without a server: nothing of the pages is then in its
processes and folder. At the end the server is asked to end while the pages are open.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.harness import phalanx_command, report
from phalanx.demos import digits

ALONE, SETTLING = 5.0, 5.0
PATIENCE = 60.0
ASKS = {
    "run": ("charts?by=time&points=600", "log/0?lines=200"),
    "cluster": ("cluster?points=300",),
    "timeline": ("timeline?points=800",),
}
"""What each kind of page asks for when there is more to draw."""


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks watching")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pages", default="run,run,run")
    parser.add_argument("--script", default=digits.__file__)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder, training(Path(folder), given.script) as run:
        time.sleep(ALONE)
        report(
            "files and ports of watching in a run that nobody watches", value=traces(run), bar="0"
        )
        measure(run, given.seconds, given.pages.split(","))


@contextlib.contextmanager
def training(home: Path, script: str) -> Iterator[Path]:
    """A run of two workers in ``home``; yields its folder once it trains."""
    words = phalanx_command("run", script, "--workers", "2", "--epochs", "100000")
    process = subprocess.Popen(
        words,
        env=os.environ | {"PHALANX_RUNS": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not any(b'"steps"' in file.read_bytes() for file in home.glob("*/events/rank-1.*")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the run does not train")
            time.sleep(0.2)
        yield next(home.glob("*/events")).parent
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def traces(run: Path) -> int:
    """Return how much of watching there is: its files, and ports of the run's processes."""
    ports = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PHALANX_RUNS") == str(run.parent):
                ports += sum(one.status == "LISTEN" for one in process.net_connections("inet"))
    return ports + len(list(run.glob("rollups*")))


def measure(run: Path, seconds: float, pages: list[str]) -> None:
    server = subprocess.Popen(
        phalanx_command("watch", run.name, "--json"),
        env=os.environ | {"PHALANX_RUNS": str(run.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    address = urlsplit(json.loads(server.stdout.readline())["address"])
    about = psutil.Process(server.pid)
    time.sleep(SETTLING)
    began = spent(about)
    time.sleep(10.0)
    report("server without a page: share of a core", value=(spent(about) - began) / 10.0)
    headers = entered(address.port or 0, f"{address.path}?{address.query}")
    counts: Counter[str] = Counter()
    for kind in pages:
        words = (address.port, headers, f"/api/run/{run.name}", ASKS[kind], counts)
        threading.Thread(target=watch, args=words, daemon=True).start()
    time.sleep(SETTLING)
    counts.clear()
    steps, before, at = steps_of(run), spent(about), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - at
    share = (spent(about) - before) / passed
    counts["steps_per_second"] = round((steps_of(run) - steps) / passed)
    name = f"server, pages {', '.join(pages)}: share of a core"
    report(name, bar="<= 0.03", value=share, rss=about.memory_info().rss, **counts)
    at = time.monotonic()
    server.terminate()
    code = server.wait(PATIENCE)
    report("end with open pages, s", bar="< 2", value=time.monotonic() - at, exit_code=code)


def steps_of(run: Path) -> int:
    """Return how many steps the first worker has written down."""
    lines = (run / "events" / "rank-0.jsonl").read_bytes().splitlines()[:-1]
    return sum(len(json.loads(line)["samples"]) for line in lines if b'"steps"' in line[:40])


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def entered(port: int, path: str) -> dict[str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path)
    cookie = connection.getresponse().headers["set-cookie"]
    return {"Cookie": cookie.partition(";")[0]}


def watch(
    port: int, headers: dict[str, str], run: str, asks: tuple[str, ...], counts: Counter[str]
) -> None:
    """Be one page until the server ends."""
    events = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    events.request("GET", f"{run}/stream", headers=headers)
    stream = events.getresponse()
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    while line := stream.readline():
        if line.startswith(b"event: "):
            counts[f"{line[7:].decode().strip()}_events"] += 1
        if line.startswith(b"event: charts"):
            for ask in asks:
                asking.request("GET", f"{run}/{ask}", headers=headers)
                counts["bytes"] += len(asking.getresponse().read())
                counts["answers"] += 1
