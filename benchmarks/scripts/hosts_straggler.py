"""One worker of ``python -m benchmarks hosts-straggler``: a CNN in blocks; or a bare loop.

``phalanx worker hosts_straggler.py -- BATCH`` trains together, BATCH being the global one;
``python hosts_straggler.py alone BATCH`` makes steps of BATCH samples and agrees with nobody.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import phalanx
from benchmarks.peers.turns import take_turns
from benchmarks.scripts.blocks import blocks_of
from benchmarks.straggler_worker import make_cnn, make_optimizer

MOST_SAMPLES = 30_000


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(MOST_SAMPLES, 1, 28, 28), torch.randint(0, 10, (MOST_SAMPLES,))


def alone(batch: int) -> Callable[[int], float]:
    model, loss, (x, y) = make_cnn(), nn.CrossEntropyLoss(), data()
    optimizer = make_optimizer(model)

    def block(steps: int) -> float:
        began = time.perf_counter()
        for step in range(steps):
            at = step * batch % (MOST_SAMPLES - batch)
            optimizer.zero_grad()
            loss(model(x[at : at + batch]), y[at : at + batch]).backward()
            optimizer.step()
        return time.perf_counter() - began

    return block


def together(batch: int) -> Callable[[int], float]:
    model, (x, y) = make_cnn(), data()
    run = phalanx.join(model, make_optimizer(model))
    return blocks_of(run, model, lambda samples: (x[:samples], y[:samples]), batch)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    *kind, batch = sys.argv[1:]
    take_turns((alone if kind == ["alone"] else together)(int(batch)))


if __name__ == "__main__":
    main()
