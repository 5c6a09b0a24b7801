"""``python -m benchmarks hosts-straggler``: three machines, one of them a quarter as fast.

Samples a second of a CNN as a share of the sum of the machines' own speeds, each measured alone,
in the same run, in alternated blocks. Needs root, for the lab.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import report, spread
from benchmarks.hosts_teams import Failed, Keys, Place, Team, in_turns, lost, start_teams
from phalanx.lab.lab import Lab

QUOTAS = {"m1": 80.0, "m2": 80.0, "m3": 20.0}
"""Percent of a core; two cores hold them with something to spare for the host itself."""
BATCH = 288
STRATEGIES = {
    "balanced allreduce": "allreduce",
    "async": "async",
    "groups:by=speed": "groups:by=speed",
}
BAR = 0.85
WARM_STEPS = 80
"""A clear difference is settled after about 50 steps; groups form once."""
SCRIPT = "benchmarks/scripts/hosts_straggler.py"
BLOCK_LIMIT = 240.0


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts-straggler")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a block, about")
    parser.add_argument("--warm", type=int, default=WARM_STEPS, help="steps before the blocks")
    parser.add_argument("--batch", type=int, default=BATCH)
    chosen = parser.parse_args(words)
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-"))
        quotas = list(QUOTAS.values())
        name = f"bench{os.getpid()}"
        lab = ends.enter_context(Lab.up(len(quotas), name=name, cpu=quotas, share=[folder]))
        teams = _start(lab, Keys(lab, Path(folder)), chosen.batch, ends)
        lengths = _lengths(teams, chosen)
        found = in_turns(teams, lambda name: lengths[name], chosen.rounds, lost)
    _tell(found, shares(chosen.batch), chosen.batch)


def shares(batch: int) -> dict[str, int]:
    """Of the global batch, as the quotas are: what a machine alone is measured with."""
    whole = sum(QUOTAS.values())
    return {machine: max(1, round(batch * quota / whole)) for machine, quota in QUOTAS.items()}


def _start(lab: Lab, keys: Keys, batch: int, ends: ExitStack) -> dict[str, Team]:
    places = {
        machine: [Place(machine, [sys.executable, SCRIPT, "alone", str(share)])]
        for machine, share in shares(batch).items()
    }
    for name, strategy in STRATEGIES.items():
        places[name] = keys.team(SCRIPT, list(QUOTAS), strategy, words=[str(batch)])
    return start_teams(lab, places, ends)


def _lengths(teams: dict[str, Team], chosen: argparse.Namespace) -> dict[str, int]:
    """Steps of a block of each team, once shares and groups have settled."""
    found = {}
    for name in list(teams):
        try:
            teams[name].block(8 if name in QUOTAS else chosen.warm, BLOCK_LIMIT)
            step = teams[name].block(8, BLOCK_LIMIT)
        except Failed as failure:
            lost(name, str(failure))
            del teams[name]
        else:
            found[name] = max(8, min(100, round(chosen.seconds / step)))
    return found


def _tell(found: dict[str, list[float]], alone: dict[str, int], batch: int) -> None:
    load = [round(value, 2) for value in os.getloadavg()]
    report("load of this machine after the blocks", value=load)
    sums = [0.0] * len(next(iter(found.values())))
    for machine, share in alone.items():
        speeds = [share / seconds for seconds in found[machine]]
        sums = [a + b for a, b in zip(sums, speeds, strict=True)]
        report(
            f"{machine} alone, {QUOTAS[machine]:g} % of a core, samples/s",
            **spread(speeds),
            step_seconds=spread(found[machine])["median"],
            batch=share,
        )
    for name in STRATEGIES:
        if name in found:
            parts = [batch / s / whole for s, whole in zip(found[name], sums, strict=True)]
            figure = f"{name}, three machines / sum of their own speeds"
            report(figure, bar=f">= {BAR}", **spread(parts))
