"""``python -m benchmarks hosts-ahead``: what it gains that gradients go ahead of their step.

Steps of two convolutional models on two machines at 1 Gbit/s: with it, without it, torch DDP (which
does so too), and a bare loop that exchanges nothing; in the same run, in alternated blocks. Needs
root, for the lab.
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

MODELS = ("mnist_cnn", "mnist_convnet")
MACHINES = ("m1", "m2")
SCRIPT = "benchmarks/scripts/hosts_ahead.py"
WARM_STEPS = 6


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts-ahead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a block, about")
    parser.add_argument("--rate", default="1gbit")
    chosen = parser.parse_args(words)
    for model in MODELS:
        with ExitStack() as ends:
            folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-"))
            name = f"bench{os.getpid()}"
            lab = ends.enter_context(
                Lab.up(len(MACHINES), name=name, rate=chosen.rate, share=[folder])
            )
            teams = _start(lab, Keys(lab, Path(folder)), model, ends)
            lengths = _lengths(teams, chosen.seconds)
            found = in_turns(teams, lengths.__getitem__, chosen.rounds, lost)
        _tell(found, model, chosen.rate)


def _start(lab: Lab, keys: Keys, model: str, ends: ExitStack) -> dict[str, Team]:
    cores = range(len(MACHINES))
    places = {
        "ahead": keys.team(SCRIPT, MACHINES, "allreduce", cores=cores, words=[model, "early"]),
        "with the step": keys.team(
            SCRIPT, MACHINES, "allreduce", cores=cores, words=[model, "late"]
        ),
        "DDP": _torch(lab, model, "ddp"),
        "bare loop": _torch(lab, model, "bare"),
    }
    return start_teams(lab, places, ends)


def _torch(lab: Lab, model: str, kind: str) -> list[Place]:
    shared = {
        "GLOO_SOCKET_IFNAME": "eth0",
        "MASTER_ADDR": lab.machine(MACHINES[0]).address,
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(len(MACHINES)),
    }
    return [
        Place(machine, [sys.executable, SCRIPT, model, kind], {**shared, "RANK": str(rank)}, rank)
        for rank, machine in enumerate(MACHINES)
    ]


def _lengths(teams: dict[str, Team], seconds: float) -> dict[str, int]:
    found = {}
    for name in list(teams):
        try:
            found[name] = max(4, min(100, round(seconds / teams[name].block(WARM_STEPS))))
        except Failed as failure:
            lost(name, str(failure))
            del teams[name]
    return found


def _tell(found: dict[str, list[float]], model: str, rate: str) -> None:
    for name, seconds in found.items():
        report(f"{model}, a step of 128 samples at {rate}: {name}, ms", **spread(_ms(seconds)))
    for other in ("with the step", "DDP"):
        if "ahead" in found and other in found:
            ratios = [b / a for a, b in zip(found["ahead"], found[other], strict=True)]
            report(f"{model} at {rate}: samples/s, ahead / {other}", **spread(ratios))


def _ms(seconds: list[float]) -> list[float]:
    return [1e3 * value for value in seconds]
