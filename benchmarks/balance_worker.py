"""One rank of two equal ones: blocks of an MLP's steps, with equal shares and balanced."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.harness import alternate, give
from phalanx.core.settings import RunSettings
from phalanx.train.api.join import join_with
from phalanx.train.engine.shared_engine import SharedEngine
from phalanx.train.start.environment import Environment, detect

BATCH, FEATURES, CLASSES = 512, 784, 10
FEWEST = 20  # steps of a block
SAMPLES = FEWEST * BATCH


def training(
    environment: Environment, balance: str, steps: int
) -> tuple[Callable[[], float], SharedEngine]:
    settings = RunSettings(strategy="allreduce", balance=balance)  # type: ignore[arg-type]
    model = nn.Sequential(
        nn.Linear(FEATURES, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, CLASSES)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = join_with(
        model, optimizer, environment=dataclasses.replace(environment, settings=settings)
    )
    engine, loss = run.engine, nn.CrossEntropyLoss()
    assert isinstance(engine, SharedEngine)
    chance = torch.Generator().manual_seed(0)  # the same on both: they draw alike until they join
    data = (
        torch.randn(SAMPLES, FEATURES, generator=chance),
        torch.randint(0, CLASSES, (SAMPLES,), generator=chance),
    )

    def block() -> float:
        engine.barrier()
        began = time.perf_counter()
        for _ in range(max(1, steps * BATCH // SAMPLES)):
            for x, y in run.batches(data, batch=BATCH):
                run.backward(loss(model(x), y))
                run.step()
        engine.barrier()
        return time.perf_counter() - began

    return block, engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment = detect()
    assert environment.arena is not None
    cell = environment.arena.region("step", 1, torch.float64).numpy()
    trial, _ = training(environment, "off", FEWEST)
    trial()
    if environment.rank == 0:
        cell[0] = trial() / FEWEST
    else:
        trial()
    environment.arena.barrier()
    steps = max(FEWEST, int(chosen.seconds / float(cell[0])))
    blocks, engines = {}, {}
    for name in ("off", "auto"):
        blocks[name], engines[name] = training(environment, name, steps)
    seconds = alternate(blocks, chosen.rounds)
    shares = list(engines["auto"]._control.watch.shares)
    give({"seconds": seconds, "shares": shares, "batch": BATCH})


if __name__ == "__main__":
    main()
