"""``python -m benchmarks adopted``: a step of an adopted script against one that calls Phalanx.

Whole runs of two workers, alternated; the step time is the median of the epochs of each run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile

from benchmarks.harness import ROOT, phalanx_command, report, spread

SCRIPTS = {
    "explicit": "benchmarks/scripts/explicit_loop.py",
    "adopted": "benchmarks/scripts/adopted_loop.py",
}
MOST = 1.02


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks adopted")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategy", default="allreduce")
    parser.add_argument("--view", default="auto", help="of the adopted script")
    chosen = parser.parse_args(words)
    found: dict[str, list[float]] = {kind: [] for kind in SCRIPTS}
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        for _ in range(chosen.rounds):
            for kind, script in SCRIPTS.items():
                found[kind].append(_step(script, chosen.strategy, chosen.view, folder))
    for kind, seconds in found.items():
        report(f"a step, {kind}, {chosen.strategy}, ms", **spread([s * 1e3 for s in seconds]))
    ratios = [a / e for a, e in zip(found["adopted"], found["explicit"], strict=True)]
    report(f"a step, adopted / explicit, view {chosen.view}", bar=f"<= {MOST}", **spread(ratios))


def _step(script: str, strategy: str, view: str, folder: str) -> float:
    words = ["run", script, "--workers", "2", "--strategy", f"{strategy}:shares=equal"]
    words += ["--view", view] if script == SCRIPTS["adopted"] else []
    ended = subprocess.run(
        phalanx_command(*words, "--checkpoint-every", "0"),
        cwd=ROOT,
        env={**os.environ, "PHALANX_RUNS": folder},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    step = re.search(r"^step (\S+)$", ended.stdout, re.M)
    assert step is not None, ended.stdout
    return float(step[1])
