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
    parser.add_argument("--each", type=int, default=1, help="workers on each machine")
    parser.add_argument(
        "--loop", choices=["run", "own", "clip"], default="run",
        help="own: it calls loss.backward(); clip: and clips the gradient",
    )  # fmt: skip
    parser.add_argument("--models", default=",".join(MODELS))
    chosen = parser.parse_args(words)
    for model in chosen.models.split(","):
        with ExitStack() as ends:
            folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-"))
            name = f"bench{os.getpid()}"
            lab = ends.enter_context(
                Lab.up(len(MACHINES), name=name, rate=chosen.rate, share=[folder])
            )
            teams = _start(lab, Keys(lab, Path(folder)), model, chosen, ends)
            lengths = _lengths(teams, chosen.seconds)
            found = in_turns(teams, lengths.__getitem__, chosen.rounds, lost)
        kind = f"{model}, {chosen.each} on each of {len(MACHINES)} machines"
        _tell(found, f"{kind}, loop: {chosen.loop}", chosen.rate)


def _start(
    lab: Lab, keys: Keys, model: str, chosen: argparse.Namespace, ends: ExitStack
) -> dict[str, Team]:
    machines = [machine for machine in MACHINES for _ in range(chosen.each)]
    enough = len(os.sched_getaffinity(0)) >= len(machines)  # else those of a machine share one
    cores = [n if enough else n // chosen.each for n in range(len(machines))]
    words = [model, str(len(machines)), chosen.loop]
    places = {
        name: keys.team(SCRIPT, machines, "allreduce", cores=cores, words=[kind, *words])
        for name, kind in (("ahead", "early"), ("with the step", "late"))
    }
    places |= {
        name: _torch(lab, machines, cores, [kind, *words])
        for name, kind in (("DDP", "ddp"), ("bare loop", "bare"))
    }
    return start_teams(lab, places, ends)


def _torch(lab: Lab, machines: list[str], cores: list[int], words: list[str]) -> list[Place]:
    shared = {
        "GLOO_SOCKET_IFNAME": "eth0",
        "MASTER_ADDR": lab.machine(MACHINES[0]).address,
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(len(machines)),
    }
    return [
        Place(machine, [sys.executable, SCRIPT, *words], {**shared, "RANK": str(rank)}, core)
        for rank, (machine, core) in enumerate(zip(machines, cores, strict=True))
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
