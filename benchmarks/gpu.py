"""``python -m benchmarks gpu``: one GPU; several workers on it, and what ``fit`` costs there.

The model of ``examples/cifar_resnet.py``. Where CIFAR-10 is not at hand, ``--data made`` takes
noise of its shape (speeds are the same then, accuracies mean nothing), and ``--data FILE.npz`` a
part of it: ``train_x`` and ``test_x`` as bytes, ``train_y``, ``test_y``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from examples.cifar_resnet import make_model
from torch import Tensor, nn

import phalanx
from benchmarks.harness import ROOT, alternate, report, spread
from benchmarks.whole_runs import Failed, run_phalanx

BATCH, STEPS = 128, 60
STRATEGIES = ("allreduce", "async", "switch:at=0.5")
GPU = torch.device("cuda:0")
LIMIT = 900.0
Data = tuple[Tensor, Tensor]


def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", default="1,4", help="numbers of workers, by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", default="cifar-10", metavar="cifar-10|made|FILE")
    parser.add_argument("--only", choices=("fit", "runs"))
    asked = parser.parse_args(words)
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here")
    if asked.only != "runs":
        fit_overhead(asked.rounds)
    if asked.only != "fit":
        for workers in map(int, asked.workers.split(",")):
            runs(workers, asked.epochs, asked.data)


# -- what fit costs --------------------------------------------------------------------------


def fit_overhead(rounds: int) -> None:
    """Alternated, in one process; every block is a training of ``STEPS`` steps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * BATCH, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (STEPS * BATCH,), generator=generator)
    there = x.to(GPU), y.to(GPU)
    model = make_model().to(GPU)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    blocks: dict[str, Callable[[], float]] = {
        "bare": lambda: _timed(_bare, model, first, there),
        "fit": lambda: _timed(_fit, model, first, there),
        "fit from the host": lambda: _timed(_fit, model, first, (x, y)),
    }
    found = alternate(blocks, rounds)
    for name, seconds in found.items():
        report(f"cifar_resnet on a GPU, {name}, ms a step", **spread([s * 1e3 for s in seconds]))
    for name in ("fit", "fit from the host"):
        ratios = [a / b for a, b in zip(found[name], found["bare"], strict=True)]
        report(f"cifar_resnet on a GPU, {name} / bare loop", bar="<= 1.03", **spread(ratios))


def _timed(
    train: Callable[[nn.Module, Data], None],
    model: nn.Module,
    first: dict[str, Tensor],
    data: Data,
) -> float:
    model.load_state_dict(first)
    model.train()
    torch.cuda.synchronize(GPU)
    began = time.perf_counter()
    train(model, data)
    torch.cuda.synchronize(GPU)
    return (time.perf_counter() - began) / STEPS


def _bare(model: nn.Module, data: Data) -> None:
    """What a careful loop does: nothing in it waits for the GPU before the end."""
    x, y = data
    loss, optimizer = nn.CrossEntropyLoss(), _optimizer(model)
    total, correct = torch.zeros((), device=GPU), torch.zeros((), device=GPU)
    order = torch.randperm(len(x)).to(GPU)
    for start in range(0, len(x), BATCH):
        chosen = order[start : start + BATCH]
        features, targets = x[chosen], y[chosen]
        optimizer.zero_grad()
        outputs = model(features)
        error = loss(outputs, targets)
        error.backward()
        optimizer.step()
        total += error.detach() * len(chosen)
        correct += (outputs.argmax(1) == targets).sum()
    float(total), float(correct)


def _fit(model: nn.Module, data: Data) -> None:
    phalanx.fit(
        model,
        optimizer=_optimizer(model),
        loss=nn.CrossEntropyLoss(),
        train=data,
        epochs=1,
        batch=BATCH,
    )


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


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
        pool = folder / "pool.yaml"
        pool.write_text("machines:\n  here: {host: here, gpus: 1}\n")
        for strategy in STRATEGIES if workers > 1 else ("single",):
            words = [
                *("run", str(script), "--strategy", strategy, "--pool", str(pool)),
                *("--workers", str(workers), "--epochs", str(epochs), "--balance", "off"),
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
