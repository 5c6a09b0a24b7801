"""``python -m benchmarks views``: an unchanged loop in each view of a batch, alternated.

Whole runs of two workers in view ``parts``, ``whole`` and the one that Phalanx chooses, beside the
script alone and with ``DistributedDataParallel``. A step is the median of the epochs of a run; so
is an evaluation, which every worker makes for itself in view ``parts`` and all make together in
view ``whole``. With ``--pool FILE`` the workers are those of a pool, such as three machines of
``phalanx lab up --cpu 80,80,20``, and only Phalanx is run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile

from benchmarks.harness import ROOT, phalanx_command, report, spread

SCRIPT = "benchmarks/scripts/view_loop.py"
LENGTHS = {"mlp": ("300", "6"), "cnn": ("60", "4"), "resnet": ("30", "4")}
VIEWS = ("parts", "whole", "auto")
WAYS = ("alone", "ddp", *VIEWS)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks views")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(LENGTHS))
    parser.add_argument("--pool")
    chosen = parser.parse_args(words)
    ways = WAYS if chosen.pool is None else VIEWS
    for model in chosen.models.split(","):
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
            for _ in range(chosen.rounds):
                for way in ways:
                    found[way].append(_times(model, way, folder, chosen.pool))
        for way, times in found.items():
            report(f"{model}: a step, {way}, ms", **spread([s * 1e3 for s, _ in times]))
        for way, others in (("whole", "parts"), ("auto", "parts"), ("auto", "ddp")):
            if others not in found:
                continue
            pairs = list(zip(found[others], found[way], strict=True))
            ratios = [other[0] / one[0] for other, one in pairs]
            report(f"{model}: steps a second, {way} / {others}", **spread(ratios))
        one = "parts" if "alone" not in found else "alone"
        pairs = list(zip(found[one], found["whole"], strict=True))
        report(f"{model}: evaluation, {one} / whole", **spread([a[1] / w[1] for a, w in pairs]))


def _command(way: str, pool: str | None) -> list[str]:
    if way == "alone":
        return [sys.executable, SCRIPT]
    if way == "ddp":
        alone = ["--standalone", "--nproc-per-node", "2"]
        return [sys.executable, "-m", "torch.distributed.run", *alone, SCRIPT]
    where = ["--workers", "2"] if pool is None else ["--pool", pool]
    words = [
        "run",
        SCRIPT,
        *where,
        "--view",
        way,
        *([] if pool else ["--strategy", "allreduce:shares=equal"]),
    ]
    return [*phalanx_command(*words, "--checkpoint-every", "0"), "--"]


def _times(model: str, way: str, folder: str, pool: str | None) -> tuple[float, float]:
    steps, epochs = LENGTHS[model]
    script = [model, "--steps", steps, "--epochs", epochs]
    ended = subprocess.run(
        [*_command(way, pool), *script],
        cwd=ROOT,
        env={**os.environ, "PHALANX_RUNS": folder},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    step, evaluation = (
        re.search(rf"^{name} (\S+)$", ended.stdout, re.M) for name in ("step", "evaluation")
    )
    assert step is not None and evaluation is not None, ended.stdout
    return float(step[1]), float(evaluation[1])
