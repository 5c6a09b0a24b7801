"""``python -m benchmarks hosts-steps``: steps of the MLP between two machines, beside the peers.

All systems are started first; then they compute in turns, one at a time, in blocks of about the
same length. First on links without a limit, then at 1 Gbit/s. Needs root, for the lab.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import report, spread
from benchmarks.hosts_systems import COMPUTE, Systems
from benchmarks.hosts_teams import Failed, Keys, Team, in_turns, lost
from benchmarks.peers.turns import BATCH, STEPS
from benchmarks.tensorflow_env import tensorflow_python
from phalanx.lab.lab import Lab
from phalanx.lab.limits import read_rate

PARAMETERS = 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10
PAYLOAD, PACKET = 1448, 1514
"""Bytes of a full TCP packet with time stamps: what it carries, and what the link counts."""
UPDATES = ("async", "ParameterServer", "ParameterServer, compiled loop")
RATIOS = (
    # what, against what, bar without a limit, bar at 1 Gbit/s
    ("allreduce", "DDP", 1.5, 1.0),
    ("allreduce", "MultiWorkerMirrored", 5.0, 2.5),
    ("allreduce", "MultiWorkerMirrored, compiled loop", None, None),
    ("async", "ParameterServer", 5.0, None),
    ("async", "ParameterServer, compiled loop", None, None),
)
Blocks = dict[str, list[float]]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts-steps")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block, about")
    parser.add_argument("--only", metavar="NAMES", help="systems, with commas between")
    parser.add_argument("--link", choices=("free", "1gbit"), help="only this one")
    parser.add_argument("--no-pin", action="store_true", help="let workers change cores")
    chosen = parser.parse_args(words)
    python, reason = tensorflow_python()
    if python is None:
        report("TensorFlow cannot be measured here", reason=reason)
    for link in (chosen.link,) if chosen.link else ("free", "1gbit"):
        found = measure(chosen, None if link == "free" else link, python)
        if link == "free":
            tell(found, "no limit", None)
        else:
            tell(found, "1 Gbit/s", read_rate(link))


def measure(chosen: argparse.Namespace, rate: str | None, tensorflow: Path | None) -> Blocks:
    cores: Sequence[int | None] = sorted(os.sched_getaffinity(0))[: len(COMPUTE)]
    if chosen.no_pin or len(cores) < len(COMPUTE):
        cores = [None] * len(COMPUTE)
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-"))
        lab = ends.enter_context(Lab.up(3, name=f"bench{os.getpid()}", rate=rate, share=[folder]))
        systems = Systems(lab, Keys(lab, Path(folder)), cores, tensorflow)
        wanted = chosen.only.split(",") if chosen.only else list(systems.makers())
        teams = _start(systems, wanted, ends)
        lengths = _lengths(teams, chosen.seconds)
        return in_turns(teams, lambda name: lengths[name], chosen.rounds, lost)


def _start(systems: Systems, wanted: Sequence[str], ends: ExitStack) -> dict[str, Team]:
    """One after another, and only those that come up are measured."""
    teams = {}
    for name, make in systems.makers().items():
        if name not in wanted:
            continue
        places, leaders = make()
        team = Team(name, systems.lab, places, leaders=leaders)
        ends.callback(team.close)
        try:
            team.ready()
        except Failed as failure:
            lost(name, str(failure))
        else:
            teams[name] = team
    return teams


def _lengths(teams: dict[str, Team], seconds: float) -> dict[str, int]:
    """Steps of a block of each team. The first block is left out: much is made in it."""
    found = {}
    for name in list(teams):
        try:
            teams[name].block(20)
            step = teams[name].block(20)
        except Failed as failure:
            lost(name, str(failure))
            del teams[name]
        else:
            found[name] = max(20, min(STEPS, round(seconds / step / 20) * 20))
    return found


def floor_of(compute: float, rate: float) -> float:
    """Seconds a step: compute, and the gradient on the link; both directions at once.

    Each of two hosts sends as many bytes as the gradient has, whichever way they add it up.
    """
    return compute + 4 * PARAMETERS * 8 / (rate * PAYLOAD / PACKET)


def tell(found: Blocks, link: str, rate: float | None) -> None:
    load = [round(value, 2) for value in os.getloadavg()]
    report(f"load of this machine after the blocks, {link}", value=load)
    for name, seconds in found.items():
        what = "ms an update of 64 samples" if name in UPDATES else "ms a step"
        speeds = spread([BATCH / value for value in seconds])["median"]
        figures = spread([value * 1e3 for value in seconds])
        report(f"{name}, {link}, {what}", **figures, samples_per_second=round(speeds))
    for ours, theirs, free, shaped in RATIOS:
        _ratio(found, ours, theirs, free if rate is None else shaped, link)
    if rate is not None and {"allreduce", "bare loop"} <= found.keys():
        floors = [floor_of(compute, rate) for compute in found["bare loop"]]
        parts = [floor / own for floor, own in zip(floors, found["allreduce"], strict=True)]
        report(f"allreduce, {link}: share of the floor's speed", bar=">= 0.85", **spread(parts),
               floor_ms=spread(floors)["median"] * 1e3)  # fmt: skip


def _ratio(found: Blocks, ours: str, theirs: str, bar: float | None, link: str) -> None:
    """Block by block, so that what slows all of a round slows neither side of it."""
    if {ours, theirs} <= found.keys():
        ratios = [b / a for a, b in zip(found[ours], found[theirs], strict=True)]
        named = {} if bar is None else {"bar": f">= {bar:g}"}
        report(f"{ours} / {theirs}, {link}, samples/s", **named, **spread(ratios))
