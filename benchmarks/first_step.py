"""``python -m benchmarks first-step``: how long it takes from a command to the first step.

An unchanged script is run by ``python`` and by ``phalanx run`` with one worker and with two, in
turn. With ``--pool FILE`` the workers are on the machines of a pool, such as five of
``phalanx lab up --count 5``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import ROOT, phalanx_command, report, spread

SCRIPT = str(ROOT / "benchmarks" / "scripts" / "first_step.py")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks first-step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pool", type=Path)
    asked = parser.parse_args(words)
    ways = {"python": [sys.executable, SCRIPT]}
    if asked.pool is None:
        for workers in ("1", "2"):
            ways[f"{workers} workers"] = phalanx_command("run", SCRIPT, "--workers", workers)
    else:
        ways["pool"] = phalanx_command("run", SCRIPT, "--pool", str(asked.pool.resolve()))
    found: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        for number in range(asked.rounds):
            for way in sorted(ways, reverse=number % 2 > 0):
                found[way].append(_seconds(ways[way], folder))
    for way, seconds in found.items():
        report(f"first step, {way}, s", **spread(seconds))
        if way != "python":
            longer = [a - b for a, b in zip(seconds, found["python"], strict=True)]
            report(f"first step, {way}, s longer than python", **spread(longer))


def _seconds(command: list[str], folder: str) -> float:
    began = time.time()
    ended = subprocess.run(
        command, env={**os.environ, "PHALANX_RUNS": folder},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    moment = re.search(r"first step at (\S+)", ended.stdout + ended.stderr)
    if moment is None:
        raise SystemExit(f"{' '.join(command)}: no first step\n{ended.stderr[-2000:]}")
    return float(moment[1]) - began
