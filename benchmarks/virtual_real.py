"""``python -m benchmarks virtual-real``: virtual time against processes, same script and seeds.

Jobs sleep instead of computing, so that all workers fit on a few cores. What a step takes is
measured with one worker; nothing else is handed from the real runs to the virtual ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, phalanx_command, report

SCRIPT = "benchmarks/scripts/sleeping_digits.py"
CLUSTERS = ("1,1", "1,1,0.5", "1,1,1,1", "1,1,1,0.5,0.5")
"""Speeds of the workers."""
STRATEGIES = ("async", "ssp:bound=3", "dssp", "localsgd:every=8", "allreduce")
BATCH, SLEEP = 64, 30.0
JITTER = 0.03
"""Of the real steps: their scheduling, as measured with one worker."""


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks virtual-real")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--clusters", default=";".join(CLUSTERS), help="speeds, one after ';'")
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        errors, distances = [], []
        for strategy in chosen.strategies.split(","):
            for speeds in chosen.clusters.split(";"):
                seeds, step = range(chosen.seeds), step_seconds(Path(folder), speeds)
                real = [_real(Path(folder), speeds, strategy, seed) for seed in seeds]
                virtual = [_virtual(Path(folder), speeds, strategy, seed, step) for seed in seeds]
                error, distance = compare(f"{strategy}, speeds {speeds}", virtual, real)
                errors += error
                distances += distance
    report("time, virtual / real - 1, median", value=statistics.median(errors), bar="<= 0.05")
    report("time, virtual / real - 1, largest", value=max(errors), bar="<= 0.1")
    if distances:
        report("staleness, largest distance (KS)", value=max(distances), bar="<= 0.15")


Summary = dict[str, Any]


def compare(
    name: str, virtual: Sequence[Summary], real: Sequence[Summary]
) -> tuple[list[float], list[float]]:
    """Errors of the time, and distances of the staleness, by seed."""
    ratios = [
        r["samples_per_second"] / v["samples_per_second"]
        for v, r in zip(virtual, real, strict=True)
    ]
    distances = [
        distance(v["staleness"], r["staleness"])
        for v, r in zip(virtual, real, strict=True)
        if r["staleness"]
    ]
    accuracies = [[round(100 * s["test_accuracy"], 2) for s in runs] for runs in (virtual, real)]
    report(
        f"virtual / real, {name}",
        time=[round(ratio, 3) for ratio in ratios],
        staleness_distance=[round(d, 3) for d in distances],
        accuracy_virtual=accuracies[0],
        accuracy_real=accuracies[1],
    )
    return [abs(ratio - 1.0) for ratio in ratios], distances


def distance(one: dict[str, int], other: dict[str, int]) -> float:
    """Of Kolmogorov and Smirnov: the largest between the two cumulative shares."""
    most = max(map(int, (*one, *other)))

    def cumulative(counts: dict[str, int]) -> list[float]:
        total = sum(counts.values())
        parts = [counts.get(str(n), 0) / total for n in range(most + 1)]
        return [sum(parts[: n + 1]) for n in range(most + 1)]

    return max(abs(a - b) for a, b in zip(cumulative(one), cumulative(other), strict=True))


@cache
def step_seconds(folder: Path, speeds: str) -> float:
    """Of a worker alone that has as many samples in a step."""
    batch = str(BATCH // len(speeds.split(",")))
    found = _phalanx(
        folder, "run", SCRIPT, "--strategy", "single", "--batch", batch, "--", "--sleep",
        str(SLEEP), "--epochs", "2",
    )  # fmt: skip
    report(f"a step of {batch} samples, ms", value=1e3 * found["step_seconds"])
    return float(found["step_seconds"])


def _real(folder: Path, speeds: str, strategy: str, seed: int) -> Summary:
    count = str(len(speeds.split(",")))
    return _phalanx(
        folder, "run", SCRIPT, "--workers", count, "--strategy", strategy, "--seed", str(seed),
        "--slow", speeds, "--", "--sleep", str(SLEEP),
    )  # fmt: skip


def _virtual(folder: Path, speeds: str, strategy: str, seed: int, step: float) -> Summary:
    count = str(len(speeds.split(",")))
    return _phalanx(
        folder, "simulate", SCRIPT, "--workers", count, "--strategy", strategy, "--seed",
        str(seed), "--speeds", speeds, "--step-seconds", f"{1e3 * step:.3f}ms~{JITTER}",
    )  # fmt: skip


def _phalanx(folder: Path, *words: str) -> Summary:
    environment = {**os.environ, "PHALANX_RUNS": str(folder), "OMP_NUM_THREADS": "1"}
    before = {path.name for path in folder.iterdir()}
    ended = subprocess.run(
        phalanx_command(*words), cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)}: {ended.stderr[-600:]}")
    (made,) = {path.name for path in folder.iterdir() if path.is_dir()} - before - {"latest"}
    found: Summary = json.loads((folder / made / "summary.json").read_text())
    return found
