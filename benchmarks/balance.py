"""``python -m benchmarks balance``: equal workers that balance has to leave alone.

``--part busy``: two equal workers beside a loop that keeps a core busy, in several runs; in each,
blocks with equal shares and balanced blocks alternate. ``--part machines``: three
equal machines of a lab, and the shares at which they end (needs root). Machines of unequal speed
are measured by ``hosts-straggler``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import report, spread, start_workers
from benchmarks.hosts_teams import Keys, start_teams
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.lab.lab import Lab
from phalanx.observe.events.timeline import read_ranks

LEAST, FARTHEST = 0.95, 0.15
QUOTA = 60.0  # percent of a core: two cores hold three such machines
BATCH, STEPS = 192, 150
SCRIPT = "benchmarks/scripts/hosts_straggler.py"
LIMIT = 600.0


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks balance")
    parser.add_argument("--part", choices=("busy", "machines"), help="only this one")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=8, help="blocks of each kind in a run")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a block, about")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the three machines")
    chosen = parser.parse_args(words)
    if chosen.part != "machines":
        busy(chosen.runs, chosen.rounds, chosen.seconds)
    if chosen.part != "busy":
        machines(chosen.steps)


@contextmanager
def busy_loop() -> Iterator[None]:
    """A process that computes all the time, wherever the kernel puts it."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def busy(runs: int, rounds: int, seconds: float) -> None:
    parts = []
    for number in range(runs):
        with busy_loop():
            found = start_workers(
                "balance_worker", 2, "--rounds", str(rounds), "--seconds", str(seconds), limit=LIMIT
            )
        off, auto = found["seconds"]["off"], found["seconds"]["auto"]
        pairs = [a / b for a, b in zip(off, auto, strict=True)]
        parts.append(statistics.median(pairs))
        report(
            f"two equal workers beside a busy loop, run {number + 1}, auto / off",
            bar=f">= {LEAST}",
            **spread(pairs),
            whole=sum(off) / sum(auto),
            shares=[round(share, 3) for share in found["shares"]],
            batch=found["batch"],
        )
    report(
        "two equal workers beside a busy loop, the worst run, auto / off",
        value=min(parts),
        bar=f">= {LEAST}",
        **spread(parts),
    )


def machines(steps: int) -> None:
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-"))
        names = ["m1", "m2", "m3"]
        lab = ends.enter_context(
            Lab.up(3, name=f"bench{os.getpid()}", cpu=[QUOTA] * 3, share=[folder])
        )
        keys = Keys(lab, Path(folder))
        place = keys.team(SCRIPT, names, "allreduce", words=[str(BATCH)])
        team = start_teams(lab, {"balanced": place}, ends)["balanced"]
        for _ in range(0, steps, 50):
            pace = team.block(50, LIMIT)
        team.close()
        shares, trials = _kept(Path(folder) / "runs")
    far = max(abs(3 * share - 1.0) for share in shares)
    report(
        f"three equal machines, {QUOTA:g} % of a core each: farthest share from equal",
        value=far,
        bar=f"<= {FARTHEST}",
        shares=[round(share, 3) for share in shares],
        trials=trials,
        samples_per_second=BATCH / pace,
    )


def _kept(runs: Path) -> tuple[list[float], int]:
    """The shares that were kept last, and how often others were tried."""
    logs = [log for folder in runs.glob("*") for log in read_ranks(RunPaths(folder))]
    if not any(log.steps for log in logs):
        raise SystemExit(f"there is no record of the steps in {runs}")
    for log in logs:
        if log.balanced:
            return list(log.balanced[-1].shares), len(log.balanced) + len(log.refused)
        if log.refused:
            return list(log.refused[-1].shares), len(log.refused)
    return [1 / 3] * 3, 0
