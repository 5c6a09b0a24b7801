"""``python -m benchmarks gpu``: one GPU; several workers on it, and what ``fit`` costs there.

The model of ``examples/cifar_resnet.py``. Where CIFAR-10 is not at hand, ``--data made`` takes
noise of its shape (speeds are the same then, accuracies mean nothing), and ``--data FILE.npz`` a
part of it: ``train_x`` and ``test_x`` as bytes, ``train_y``, ``test_y``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from benchmarks.gpu_early import early
from benchmarks.harness import ROOT, report, spread
from benchmarks.whole_runs import Failed, forget, run_phalanx

STRATEGIES = ("allreduce", "async", "switch:at=0.5")
LIMIT = 900.0


def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", default="1,4", help="numbers of workers, by commas")
    parser.add_argument("--rounds", type=int, default=8, help="epochs of each training of fit")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cases", help=f"of {'; '.join(CASES)}, with ; between")
    parser.add_argument("--data", default="cifar-10", metavar="cifar-10|made|FILE")
    parser.add_argument("--only", choices=("fit", "checkpoints", "cifar", "early", "runs"))
    asked = parser.parse_args(words)
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here")
    if asked.only in (None, "fit"):
        cases = asked.cases.split(";") if asked.cases else list(CASES)
        fit_table(asked.models.split(","), cases, asked.rounds)
    if asked.only in (None, "checkpoints"):
        checkpoints(2, asked.rounds)
    if asked.only in (None, "cifar"):
        cifar(asked.epochs)
    if asked.only in (None, "early"):
        early(asked.rounds, steps=10)
    if asked.only in (None, "runs"):
        for workers in map(int, asked.workers.split(",")):
            runs(workers, asked.epochs, asked.data)


# -- what fit costs --------------------------------------------------------------------------

MODELS = {"resnet": "float32", "conv": "bfloat16", "transformer": "bfloat16"}
CASES: dict[str, tuple[list[str], list[str], float]] = {
    # Options of ``phalanx run``, those of the script, and the bar.
    "data on the GPU": ([], ["--data", "device"], 0.97),
    "data copied once": ([], ["--data", "host"], 0.97),
    "compiled": (["--compile", "reduce-overhead"], ["--data", "device", "--compiled"], 0.97),
    "compiled, auto": (["--compile", "auto"], ["--data", "device", "--compiled"], 0.95),
    "DataLoader": ([], ["--data", "loader"], 0.97),
    "DataLoader that prepares samples": ([], ["--data", "prepared"], 0.97),
}


def fit_table(models: Sequence[str], cases: Sequence[str], epochs: int) -> None:
    """Speed of ``fit`` against that of a careful loop, in one process, epoch by epoch in turn."""
    script = ROOT / "benchmarks" / "scripts" / "gpu_fit.py"
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "seconds.json"
        pool = _pool(folder)
        for model in models:
            for case in cases:
                options, words, bar = CASES[case]
                command = ["run", str(script), "--pool", str(pool), "--workers", "1", *options]
                command += ["--precision", MODELS[model], "--"]
                command += [model, *words, "--epochs", str(epochs), "--out", str(out)]
                _ratios(f"{model} on a GPU, {case}", command, folder, out, bar)


def _ratios(name: str, command: list[str], folder: Path, out: Path, bar: float) -> None:
    out.unlink(missing_ok=True)
    try:
        found = run_phalanx(command, folder / "runs", LIMIT, {"CUDA_VISIBLE_DEVICES": "0"})
    except Failed as error:
        report(name, failed=str(error))
        return
    seconds = json.loads(out.read_text())
    bare = median(seconds["bare"])
    speeds = spread([bare / s for s in seconds["fit"]])
    said = [note for note in found.get("notes", []) if "compil" in note or "copied" in note]
    report(
        f"{name}: speed of fit / that of a loop", bar=f">= {bar}", **speeds, bare_seconds=bare,
        notes=said,
    )  # fmt: skip


def _pool(folder: Path) -> Path:
    pool = folder / "pool.yaml"
    pool.write_text("machines:\n  here: {host: here, gpus: 1}\n")
    return pool


def checkpoints(rounds: int, epochs: int) -> None:
    """Every epoch of the transformer against none at all, alternated."""
    script = ROOT / "benchmarks" / "scripts" / "gpu_fit.py"
    found: dict[str, list[float]] = {"1": [], "0": []}
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "seconds.json"
        for _ in range(rounds):
            for every, seconds in found.items():
                command = ["run", str(script), "--pool", str(_pool(folder)), "--workers", "1"]
                command += ["--precision", "bfloat16", "--checkpoint-every", every, "--"]
                command += ["transformer", "--data", "device", "--alone", "--out", str(out)]
                command += ["--epochs", str(epochs)]
                run_phalanx(command, folder / "runs", LIMIT, {"CUDA_VISIBLE_DEVICES": "0"})
                seconds += json.loads(out.read_text())["fit"]
                forget(folder / "runs")
    name = "transformer on a GPU, a checkpoint every epoch / none, seconds of an epoch"
    base = median(found["0"])
    report(name, bar="<= 1.01", **spread([s / base for s in found["1"]]), seconds=base)


def cifar(epochs: int) -> None:
    """``examples/cifar_resnet.py`` against a script that was tuned by hand: epochs a second."""
    example = ROOT / "examples" / "cifar_resnet.py"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for compiled in (False, True):
            words = ["--compiled"] if compiled else []
            peer = [sys.executable, "-m", "benchmarks.peers.cifar_by_hand", "--epochs", str(epochs)]
            ended = subprocess.run(
                [*peer, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
            )
            if ended.returncode:
                report("cifar_resnet by hand", failed=ended.stderr[-300:])
                continue
            hand = median(json.loads(ended.stdout.splitlines()[-1])["epochs"][1:])
            command = ["run", str(example), "--pool", str(_pool(folder)), "--workers", "1"]
            command += ["--epochs", str(epochs), "--compile", "auto" if compiled else "off"]
            found = run_phalanx(command, folder / "runs", LIMIT, {"CUDA_VISIBLE_DEVICES": "0"})
            ends = [row["seconds"] for row in found["history"]]
            ours = median(after - before for before, after in pairwise(ends))
            kind = "compiled" if compiled else "as it is"
            report(
                f"cifar_resnet on a GPU, {kind}: epochs a second / those of a script by hand",
                ratio=hand / ours, epochs_per_second=1 / ours, by_hand=1 / hand,
                accuracy=found["test_accuracy"], notes=found.get("notes", []),
            )  # fmt: skip


# -- whole runs ------------------------------------------------------------------------------

STAND_IN = """
import runpy, numpy, torch, phalanx
from types import SimpleNamespace

FILE = {file!r}

def part(name, count):
    if FILE:
        found = numpy.load(FILE)
        x = torch.from_numpy(found[name + "_x"]).float() / 255.0
        return SimpleNamespace(x=x, y=torch.from_numpy(found[name + "_y"]).long())
    made = torch.Generator().manual_seed(count)
    x = torch.randn(count, 3, 32, 32, generator=made)
    return SimpleNamespace(x=x, y=torch.randint(0, 10, (count,), generator=made))

phalanx.data.load = lambda name: (part("train", 50_000), part("test", 10_000))
runpy.run_path({script!r}, run_name="__main__")
"""
"""The same example on other data."""


def runs(workers: int, epochs: int, data: str) -> None:
    """``cifar_resnet.py`` by the command line, all workers on one GPU."""
    example = ROOT / "examples" / "cifar_resnet.py"
    with tempfile.TemporaryDirectory() as name:
        folder, script = Path(name), example
        if data != "cifar-10":
            file = "" if data == "made" else str(Path(data).resolve())
            script = folder / "cifar_resnet.py"
            script.write_text(STAND_IN.format(file=file, script=str(example)))
        pool = _pool(folder)
        for strategy in STRATEGIES if workers > 1 else ("single",):
            words = [
                *(
                    "run",
                    str(script),
                    "--strategy",
                    f"{strategy}:shares=equal",
                    "--pool",
                    str(pool),
                ),
                *("--workers", str(workers), "--epochs", str(epochs)),
                *("--checkpoint-every", "0"),
            ]
            _tell(words, folder, strategy, workers)


def _tell(words: list[str], folder: Path, strategy: str, workers: int) -> None:
    name = f"cifar_resnet on a GPU, {strategy}, workers: {workers}"
    try:
        found = run_phalanx(words, folder / "runs", LIMIT, {"CUDA_VISIBLE_DEVICES": "0"})
    except Failed as error:
        report(name, failed=str(error))
        return
    kept = ("samples_per_second", "seconds", "epochs", "train_loss", "test_accuracy", "switches")
    report(name, **{field: found[field] for field in kept}, time=found["time"])


if __name__ == "__main__":
    main(sys.argv[1:])
