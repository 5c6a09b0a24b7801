"""Training in virtual time against its bare gradient work: what the simulation itself costs.

The bare loop makes the same gradients, of batches of the same size, in one process and with as
many threads, and nothing else: no sum, no update, no schedule.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.harness import report, spread
from phalanx.core.run_folder.run_paths import new_run
from phalanx.core.settings import RunSettings, VirtualCluster, VirtualWorker
from phalanx.launch.launcher import Job
from phalanx.launch.run.controller import execute
from phalanx.launch.run.observer import Observer
from phalanx.plan.plan import make_plan
from phalanx.pool.here import this_machine

Clocks = tuple[float, float]
STAMPS: list[Clocks] = []
"""Of all workers, which are threads of this process: the second epoch begins with the first of
them and ends with the last."""
SHAPES = {"resnet": (3, 32, 32), "cnn": (1, 28, 28)}
CASES = [  # model, workers, batch per worker, global steps of an epoch, bar
    ("resnet", 5, 25, 3, 1.15),
    ("resnet", 16, 8, 2, 1.15),
    ("cnn", 64, 64, 1, 1.6),
]
SCRIPT = Path(__file__).parent / "scripts" / "virtual_training.py"


def make_model(kind: str) -> nn.Module:
    if kind == "resnet":
        from examples import cifar_resnet

        return cifar_resnet.make_model()
    from examples import mnist_cnn

    return mnist_cnn.make_model()


def made_up_data(kind: str, samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, *SHAPES[kind], generator=generator)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def clocks() -> Clocks:
    """Seconds that have passed, and those that this process computed."""
    return time.perf_counter(), time.process_time()


def since(began: Clocks, now: Clocks) -> Clocks:
    return now[0] - began[0], now[1] - began[1]


def bare(kind: str, batch: int, gradients: int) -> Clocks:
    """Seconds of so many gradients, in a thread: there memory is given out as to workers."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_bare, kind, batch, gradients).result()


def _bare(kind: str, batch: int, gradients: int) -> Clocks:
    x, y = made_up_data(kind, batch * 8)
    model, loss = make_model(kind), nn.CrossEntropyLoss()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    began = clocks()
    for number in range(-1, gradients):
        if number == 0:  # the first one warms up
            began = clocks()
        rows = torch.arange(batch) + number % 8 * batch
        loss(model(x.index_select(0, rows)), y.index_select(0, rows)).backward()
        model.zero_grad()
    seconds = since(began, clocks())
    torch.set_num_threads(before)
    return seconds


def virtual(kind: str, strategy: str, workers: int, batch: int, steps: int) -> Clocks:
    """Seconds of the second epoch."""
    worker = VirtualWorker(fixed=0.01, each=1e-4, update=0.001, bandwidth=125e6)
    chosen = RunSettings(
        strategy=strategy,
        batch_per_worker=batch,
        virtual=VirtualCluster(workers=[worker] * workers, latency=1e-4),
    )
    machines = this_machine().machines
    plan = make_plan(machines, workers=workers, strategy=strategy, selection="all", batch=None)
    words = [kind, str(workers * batch * steps)]
    job = Job(
        script=SCRIPT, arguments=words, settings=chosen, plan=plan, launcher="inprocess", command=[]
    )
    STAMPS.clear()
    outcome = execute(job, new_run(f"virtual-{kind}"), Observer())
    if outcome.error or not STAMPS:  # a run that was stopped in its first epoch has none
        raise SystemExit(str(outcome.error or "stopped"))
    return since(min(STAMPS), max(STAMPS))


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks virtual")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--strategies", default="allreduce,async")
    parser.add_argument("--only", help="resnet or cnn")
    parser.add_argument("--steps", type=int, help="of an epoch, instead of a few")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for kind, workers, batch, steps, bar in CASES:
            if options.only in (None, kind):
                for strategy in options.strategies.split(","):
                    _case(
                        kind, strategy, workers, batch, options.steps or steps, bar, options.rounds
                    )


def _case(
    kind: str, strategy: str, workers: int, batch: int, steps: int, bar: float, rounds: int
) -> None:
    name = f"{kind}, {strategy}, {workers} workers of {batch} samples"
    pairs = [
        (virtual(kind, strategy, workers, batch, steps), bare(kind, batch, workers * steps))
        for _ in range(rounds)
    ]
    each = [1e3 * b[0] / workers / steps for _, b in pairs]
    report(f"bare gradients, {name}, ms each", **spread(each))
    for what, clock in (("", 0), (" (processor time)", 1)):
        ratios = [v[clock] / b[clock] for v, b in pairs]
        report(
            f"virtual training / bare gradients{what}, {name}", bar=f"<= {bar}", **spread(ratios)
        )
