"""One rank: epochs of the MLP with a checkpoint after each and without, in alternated blocks.

A block is one epoch that is not measured and some that are, from just after one checkpoint was
taken to just after another: as many are written beside the measured epochs as are taken in them.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.harness import alternate, give
from benchmarks.step_worker import BATCH, make_mlp, make_optimizer
from phalanx.core.settings import RunSettings
from phalanx.train.api.join import join_with
from phalanx.train.start.environment import Environment, detect


def block_of(
    environment: Environment, x: Tensor, y: Tensor, epochs: int, every: int
) -> Callable[[], float]:
    model, loss = make_mlp(), nn.CrossEntropyLoss()
    settings = RunSettings(checkpoint_epochs=every)
    environment = dataclasses.replace(environment, settings=settings)
    run = join_with(model, make_optimizer("sgd", model), environment=environment)

    def epoch() -> None:
        for features, targets in run.batches((x, y), batch=BATCH):
            run.backward(loss(model(features), targets))
            run.step()

    def block() -> float:
        epoch()
        run.engine.barrier()
        began = time.perf_counter()
        for _ in range(epochs):
            epoch()
        run.engine.barrier()
        seconds = (time.perf_counter() - began) / epochs
        run._parts.checkpointer.finish()  # what is still being written belongs to no other block
        run.engine.barrier()
        return seconds

    return block


def main() -> None:
    rounds, epochs, samples = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment = detect()
    x, y = torch.randn(samples, 784), torch.randint(0, 10, (samples,))
    blocks = {
        "without": block_of(environment, x, y, epochs, 0),
        "with": block_of(environment, x, y, epochs, 1),
    }
    found: dict[str, object] = dict(alternate(blocks, rounds))
    assert environment.paths is not None
    found["kept"] = len(list(environment.paths.checkpoints.glob("0*")))
    give(found)


if __name__ == "__main__":
    main()
