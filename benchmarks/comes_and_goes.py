"""A straggler that comes and goes: ``switch:on=straggler`` against plain all-reduce.

Whole runs of the MNIST CNN (rate 0.05, global batch 256, three epochs), two workers. The second
one is free for some seconds, then held to a part of its core for some, and so on to the end.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.cgroup import VARIABLE, Group, group
from benchmarks.harness import ROOT, report, spread
from benchmarks.whole_runs import EQUAL, PLAIN, Results, forget, run_phalanx

SCRIPT = ROOT / "benchmarks" / "scripts" / "comes_and_goes.py"
STRATEGIES = ("allreduce", "switch:on=straggler")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "straggler")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--free", type=float, default=10.0, help="seconds between two slow times")
    parser.add_argument("--held", type=float, default=20.0, help="seconds of a slow time")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a run may take")


def main(chosen: argparse.Namespace) -> None:
    results = Results(chosen.folder / "comes_and_goes.jsonl")
    for seed in range(chosen.seeds):
        order = STRATEGIES if seed % 2 == 0 else tuple(reversed(STRATEGIES))
        for strategy in order:
            key = _key(chosen, strategy, seed)
            if results.find(key) is None:
                results.add({**key, **_run(chosen, strategy, seed)})
    _report(
        [results.find(_key(chosen, s, n)) or {} for n in range(chosen.seeds) for s in STRATEGIES]
    )


def _key(chosen: argparse.Namespace, strategy: str, seed: int) -> dict[str, object]:
    names = ("epochs", "samples", "share", "free", "held")
    settings = {name: getattr(chosen, name) for name in names}
    return {"strategy": strategy, "seed": seed, **settings}


class _Tide(threading.Thread):
    """Holds and frees the group in turn, from the moment that a worker is in it."""

    def __init__(self, held: Group, chosen: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self._group, self._chosen = held, chosen
        self._over = threading.Event()
        self.began: float | None = None

    def run(self) -> None:
        while not self._group.has_members():
            if self._over.wait(0.02):
                return
        self.began = time.monotonic()
        while True:
            for share, seconds in (
                (None, self._chosen.free),
                (self._chosen.share, self._chosen.held),
            ):
                self._group.hold_to(share)
                if self._over.wait(seconds):
                    return

    def stop(self) -> None:
        self._over.set()
        self.join()


def _run(chosen: argparse.Namespace, strategy: str, seed: int) -> dict[str, Any]:
    words = ["run", str(SCRIPT), "--workers", "2", "--strategy", strategy + EQUAL]
    words += ["--seed", str(seed)]
    words += ["--epochs", str(chosen.epochs), *PLAIN, "--", "--samples", str(chosen.samples)]
    runs = chosen.folder / f"{strategy.replace(':', '-')}-{seed}"
    with group() as held:
        tide = _Tide(held, chosen)
        tide.start()
        try:
            found = run_phalanx(words, runs, chosen.limit, {VARIABLE: str(held.members)})
            ended = time.monotonic()
        finally:
            tide.stop()
    forget(runs)
    return {
        "seconds": ended - (tide.began or ended),
        "train_seconds": found["phases"]["train"],
        "test_accuracy": found["test_accuracy"],
        "switches": len(found["switches"]),
    }


def _report(rows: list[dict[str, Any]]) -> None:
    by = {name: [row for row in rows if row.get("strategy") == name] for name in STRATEGIES}
    for name, mine in by.items():
        report(
            f"straggler comes and goes, {name}, s to train",
            **spread([row["train_seconds"] for row in mine]),
            test_accuracy=fmean(row["test_accuracy"] for row in mine),
            switches=[row["switches"] for row in mine],
        )
    plain, switched = (by[name] for name in STRATEGIES)
    pairs = list(zip(switched, plain, strict=True))
    ratios = [a["train_seconds"] / b["train_seconds"] for a, b in pairs]
    report("switch:on=straggler / plain all-reduce, time to train", bar="< 1", **spread(ratios))
    points = [100 * (a["test_accuracy"] - b["test_accuracy"]) for a, b in pairs]
    report(
        "switch:on=straggler - plain all-reduce, points of accuracy",
        bar=">= -0.3",
        value=fmean(points),
        **spread(points),
    )
