"""``python -m benchmarks views``: an unchanged loop in view ``whole`` and ``parts``, alternated.

Whole runs of two workers. A step is the median of the epochs of a run; so is an evaluation, which
every worker makes for itself in view ``parts`` and all make together in view ``whole``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile

from benchmarks.harness import ROOT, phalanx_command, report, spread

SCRIPT = "benchmarks/scripts/view_loop.py"
LENGTHS = {"mlp": ("100", "8"), "cnn": ("10", "4"), "resnet": ("12", "4")}
VIEWS = ("parts", "whole")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks views")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(LENGTHS))
    chosen = parser.parse_args(words)
    for model in chosen.models.split(","):
        found: dict[str, list[tuple[float, float]]] = {view: [] for view in VIEWS}
        with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
            for _ in range(chosen.rounds):
                for view in VIEWS:
                    found[view].append(_times(model, view, folder))
        for view, times in found.items():
            report(f"{model}: a step, view {view}, ms", **spread([s * 1e3 for s, _ in times]))
        pairs = list(zip(found["parts"], found["whole"], strict=True))
        report(f"{model}: steps a second, whole / parts", **spread([p[0] / w[0] for p, w in pairs]))
        report(f"{model}: evaluation, parts / whole", **spread([p[1] / w[1] for p, w in pairs]))


def _times(model: str, view: str, folder: str) -> tuple[float, float]:
    steps, epochs = LENGTHS[model]
    words = ["run", SCRIPT, "--workers", "2", "--view", view, "--balance", "off"]
    script = ["--", model, "--steps", steps, "--epochs", epochs]
    ended = subprocess.run(
        phalanx_command(*words, "--checkpoint-every", "0", *script),
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
