"""``python -m benchmarks follow``: shares that follow a machine which slows down and recovers.

The MNIST CNN, two workers. In the middle of the run the second one is held
to a quarter of its core for some seconds, then freed. Of each change the seconds are counted from
then until its share of the batch has covered three quarters of the way to the new one. Needs root.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

from benchmarks.cgroup import VARIABLE, Group, group
from benchmarks.harness import ROOT, report, spread
from benchmarks.whole_runs import forget, run_phalanx
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import Balanced, read_events

SCRIPT = ROOT / "benchmarks" / "scripts" / "comes_and_goes.py"
SLOW = 0.25
EQUAL, HELD = 0.5, SLOW / (1 + SLOW)
"""The share of the second worker."""
COVERED = 0.75
Shares = list[tuple[float, float]]
"""When, and of the second worker."""


class _Change(threading.Thread):
    """Holds the worker some seconds after it is there, and frees it."""

    def __init__(self, held: Group, free: float, seconds: float) -> None:
        super().__init__(daemon=True)
        self._group, self._free, self._seconds = held, free, seconds
        self.over = threading.Event()
        self.times: list[float] = []

    def run(self) -> None:
        while not self._group.has_members():
            if self.over.wait(0.02):
                return
        for share, seconds in ((SLOW, self._free), (None, self._seconds)):
            if self.over.wait(seconds):
                return
            self._group.hold_to(share)
            self.times.append(time.monotonic())


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks follow")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--free", type=float, default=15.0, help="seconds before it slows down")
    parser.add_argument("--held", type=float, default=20.0, help="seconds until it recovers")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "follow")
    chosen = parser.parse_args(words)
    slowing, recovering = [], []
    for _ in range(chosen.runs):
        times, shares = _run(chosen)
        if len(times) < 2:
            raise SystemExit("the run was over too soon: give more --epochs")
        slowing.append(_seconds(shares, times[0], EQUAL, HELD, times[1]))
        recovering.append(_seconds(shares, times[1], HELD, EQUAL, float("inf")))
    for name, found in (("slows down fourfold", slowing), ("recovers", recovering)):
        report(
            f"a worker that {name}: seconds until its share follows", bar="<= 5", **spread(found)
        )


def _run(chosen: argparse.Namespace) -> tuple[list[float], Shares]:
    words = ["run", str(SCRIPT), "--workers", "2", "--strategy", "allreduce"]
    words += ["--checkpoint-every", "0", "--epochs", str(chosen.epochs)]
    words += ["--", "--samples", str(chosen.samples), "--no-test"]
    with group() as held:
        change = _Change(held, chosen.free, chosen.held)
        change.start()
        try:
            found = run_phalanx(words, chosen.folder, 900.0, {VARIABLE: str(held.members)})
        finally:
            change.over.set()
            change.join()
    events = read_events(RunPaths(chosen.folder / found["run"]).events_of(0))
    shares = [(e.time, e.shares[1]) for e in events if isinstance(e, Balanced)]
    forget(chosen.folder)
    return change.times, shares


def _seconds(shares: Shares, began: float, before: float, after: float, end: float) -> float:
    """From ``began`` until three quarters of the way are behind; infinite if that never was."""
    there = before + COVERED * (after - before)
    for when, share in shares:
        reached = share <= there if after < before else share >= there
        if began <= when < end and reached:
            return when - began
    return float("inf")
