"""What watching a machine costs: processor time of the threads that read it once a second.

``python -m benchmarks observers [--seconds N]``. Both run as in a run, each beside two processes
that are their workers: the monitor of a local run, which writes its samples to a file, and the
agent's sampler, which keeps them and sends them over a connection. The kernel's part of reading its
counters is in the figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.harness import report
from phalanx.agent.machine.sampling import KeptSamples, Sampler
from phalanx.agent.wire import Bell, Connection
from phalanx.observe.machines.monitor import Monitor

BUSY = "import time\nwhile True:\n    sum(range(1000))\n    time.sleep(0.01)\n"
WORKERS = 2
THREADS = {"monitor": ("phalanx-monitor-here",), "agent": ("sampling", "sender")}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks observers")
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args(words).seconds
    workers = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(WORKERS)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(seconds, {rank: one.pid for rank, one in enumerate(workers)}, Path(folder))
    finally:
        for one in workers:
            one.kill()
            one.wait()


def measure(seconds: float, pids: dict[int, int], folder: Path) -> None:
    known: Any = SimpleNamespace(pids=pids, codes={})
    reader, sink = os.pipe()
    threading.Thread(target=_drain, args=(reader,), daemon=True).start()
    connection = Connection(reader, sink, Bell(), 5.0)
    monitor = Monitor("here", folder / "here.jsonl", lambda: list(pids.values()))
    monitor.start()
    kept = KeptSamples(folder)
    kept.begin()
    sampler = Sampler(known, lambda: connection, kept)
    sampler.tell_to(connection, None)
    time.sleep(2)
    began, before = time.monotonic(), _seconds()
    time.sleep(seconds)
    passed, after = time.monotonic() - began, _seconds()
    for name, threads in THREADS.items():
        share = sum(after[thread] - before[thread] for thread in threads) / passed
        report(f"{name}, one reading a second: share of a core", bar="<= 0.01", value=share)
    monitor.stop()
    sampler.stop()


def _seconds() -> dict[str, float]:
    """Return the processor time of each thread so far."""
    return {
        thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.ident is not None
    }


def _drain(reader: int) -> None:
    while os.read(reader, 1 << 16):
        pass
