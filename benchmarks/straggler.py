"""``python -m benchmarks straggler``: two workers, one of them held to a part of its core.

Speeds first: samples a second of a CNN as a share of the sum of both workers' own speeds, each
measured alone, in the same run. Balanced shares have settled before the first measured block.
Then a straggler that comes and goes, in whole runs. Needs root, for a control group.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import comes_and_goes
from benchmarks.cgroup import VARIABLE, group
from benchmarks.harness import report, spread, start_workers

BARS = {"balanced allreduce": 0.85, "async": 0.90, "balanced dssp": 0.85}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks straggler")
    parser.add_argument("--part", choices=("speeds", "switch"), help="only this one")
    parser.add_argument("--share", type=float, default=0.25, help="of a core, for the slow worker")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a block, about")
    comes_and_goes.add_options(parser)
    chosen = parser.parse_args(words)
    if chosen.part != "switch":
        speeds(chosen.share, chosen.rounds, chosen.seconds)
    if chosen.part != "speeds":
        comes_and_goes.main(chosen)


def speeds(share: float, rounds: int, seconds: float) -> None:
    arguments = ["--rounds", str(rounds), "--seconds", str(seconds), "--share", str(share)]
    # Blocks take about as long as asked, plain all-reduce three times as long, warming up two.
    limit = 300.0 + (rounds + 3) * 10.0 * seconds
    with group() as held:
        held.hold_to(share)
        found = start_workers(
            "straggler_worker", 2, *arguments, limit=limit, variables={VARIABLE: str(held.members)}
        )
    _report(found, share)


def _report(found: dict[str, Any], share: float) -> None:
    blocks: dict[str, list[float]] = found["speeds"]
    report(
        "CNN, half the batch at full speed, one thread, s a step",
        value=found["step_seconds"],
        bar=">= 0.05",
        batch=found["batch"],
    )
    alone = [blocks.pop("alone 0"), blocks.pop("alone 1")]
    for speeds, who in zip(alone, ("full speed", f"{share:g} of a core"), strict=True):
        report(f"worker alone at {who}, samples/s", **spread(speeds))
    sums = [a + b for a, b in zip(*alone, strict=True)]
    for name, measured in blocks.items():
        parts = [speed / whole for speed, whole in zip(measured, sums, strict=True)]
        bar = {"bar": f">= {BARS[name]:.2f}"} if name in BARS else {}
        shares = [round(part, 3) for part in found["shares"][name]]
        report(f"{name} / sum of the workers' own speeds", **bar, **spread(parts), shares=shares)
