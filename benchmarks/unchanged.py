"""``python -m benchmarks unchanged``: scripts that know no Phalanx, with Python and with Phalanx.

Each script is run by ``python`` and by ``phalanx run`` with one worker, in turn, several rounds.
Compared are the epochs after the first, the first epoch, and the whole command. ``--workers 2``
compares with torch's DDP on Gloo instead, as ``torchrun`` starts it: as many processes, on one GPU
where there is one. Without a GPU the models are small ones.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import ROOT, phalanx_command, report, spread

GPU = torch.cuda.is_available()
SMALL_NETWORK = ["--width", "8", "--samples", "2560", "--size", "16"]
SMALL_GPT = ["--width", "64", "--layers", "2", "--words", "512", "--length", "32", "--batch", "8"]
WIDE = ["--size", "128", "--width", "128", "--samples", "6400"]
SCRIPTS = {
    "resnet": ["unchanged_resnet.py", *([] if GPU else SMALL_NETWORK)],
    "resnet, clipped": ["unchanged_resnet.py", "--clip", *([] if GPU else SMALL_NETWORK)],
    "wide": ["unchanged_resnet.py", *(WIDE if GPU else SMALL_NETWORK)],
    "wide, clipped": ["unchanged_resnet.py", "--clip", *(WIDE if GPU else SMALL_NETWORK)],
    "wide, 4 loader processes": [
        "unchanged_resnet.py", *(WIDE if GPU else SMALL_NETWORK), "--loaders", "4"
    ],
    "gpt": ["unchanged_gpt.py", *([] if GPU else SMALL_GPT)],
    "gpt, clipped": ["unchanged_gpt.py", "--clip", *([] if GPU else SMALL_GPT)],
}  # fmt: skip
LIMIT = 600.0


@dataclass(frozen=True)
class Took:
    """What a run printed: seconds of its first epoch, a later one, the last, and the command."""

    first: float
    later: float
    last: float
    whole: float
    losses: tuple[float, ...]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks unchanged")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scripts", default=";".join(SCRIPTS), help=f"of {'; '.join(SCRIPTS)}")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--strategy", default="allreduce", help="of several workers")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as name:
        pool = Path(name) / "pool.yaml"
        pool.write_text(f"machines:\n  here: {{host: here, gpus: {int(GPU)}}}\n")
        for script in asked.scripts.split(";"):
            if asked.workers == 1:
                _alone(script, asked.rounds, asked.epochs, pool)
            else:
                _several(script, asked, pool)


def _alone(script: str, rounds: int, epochs: int, pool: Path) -> None:
    command = _script(script, epochs)
    ours = phalanx_command("run", command[0], "--pool", str(pool), "--workers", "1", "--")
    ways = {"alone": [sys.executable, *command], "one worker": [*ours, *command[1:]]}
    found = _in_turn(ways, rounds, pool.parent)
    pairs = list(zip(found["alone"], found["one worker"], strict=True))
    speed = [a.later / b.later for a, b in pairs]
    report(f"{script}: speed of one worker / alone", bar=">= 0.97", **spread(speed))
    report(f"{script}: seconds of an epoch, alone", **spread([a.later for a, _ in pairs]))
    longer = [b.first - a.first for a, b in pairs]
    report(f"{script}: first epoch, seconds longer", bar="<= 1", **spread(longer))
    longer = [b.last - a.last for a, b in pairs]
    report(f"{script}: last epoch, seconds longer", **spread(longer))
    whole = [b.whole - a.whole for a, b in pairs]
    report(f"{script}: whole command, seconds longer", bar="<= 3", **spread(whole))
    apart = max(abs(x - y) for a, b in pairs for x, y in zip(a.losses, b.losses, strict=True))
    report(f"{script}: losses apart by at most", value=apart)


def _several(script: str, asked: argparse.Namespace, pool: Path) -> None:
    command, workers = _script(script, asked.epochs), str(asked.workers)
    ours = phalanx_command(
        "run", command[0], "--pool", str(pool), "--workers", workers, "--strategy", asked.strategy
    )
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", workers]
    ways = {
        "ddp": [sys.executable, *start, *command, "--ddp"],
        "phalanx": [*ours, "--", *command[1:]],
    }
    found = _in_turn(ways, asked.rounds, pool.parent)
    pairs = list(zip(found["ddp"], found["phalanx"], strict=True))
    name = f"{script}, {workers} workers, {asked.strategy}"
    speed = [a.later / b.later for a, b in pairs]
    report(f"{name}: speed / DDP on Gloo", bar=">= 1.2", **spread(speed))
    for way, runs in found.items():
        report(f"{name}: seconds of an epoch, {way}", **spread([run.later for run in runs]))


def _script(script: str, epochs: int) -> list[str]:
    file, *words = SCRIPTS[script]
    return [str(ROOT / "benchmarks" / "scripts" / file), *words, "--epochs", str(epochs)]


def _in_turn(ways: dict[str, list[str]], rounds: int, folder: Path) -> dict[str, list[Took]]:
    found: dict[str, list[Took]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in sorted(ways, reverse=number % 2 > 0):
            found[way].append(_run(ways[way], folder))
    return found


def _run(command: list[str], folder: Path) -> Took:
    began = time.perf_counter()
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PHALANX_RUNS": str(folder / "runs")},
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    whole = time.perf_counter() - began
    if ended.returncode:
        raise SystemExit(
            f"{' '.join(command)}: exit code {ended.returncode}\n{ended.stderr[-2000:]}"
        )
    epochs = re.findall(r"epoch \d+ seconds ([\d.]+) loss ([\d.]+)", ended.stdout + ended.stderr)
    seconds = [float(each) for each, _ in epochs]
    losses = tuple(float(loss) for _, loss in epochs)
    return Took(seconds[0], statistics.median(seconds[1:]), seconds[-1], whole, losses)
