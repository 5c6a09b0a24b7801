"""One rank of two: a CNN's samples a second under several strategies, and of each worker alone.

All of it in one run, in alternated blocks. The second rank enters the control group that holds it
to a part of its core before anything is measured, and stays there.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.cgroup import join_named_group
from benchmarks.harness import alternate, give
from phalanx.core.settings import RunSettings
from phalanx.sync.arena.arena import Arena
from phalanx.train.api.join import join_with
from phalanx.train.engine.shared_engine import SharedEngine
from phalanx.train.start.environment import Environment, detect

SLOW = 1  # the rank that is held
LEAST_STEP = 0.05  # seconds of a step of half the global batch at full speed
WARM_STEPS = 80  # a clear difference is settled after about 50
STRATEGIES = {
    "plain allreduce": RunSettings(strategy="allreduce"),
    "balanced allreduce": RunSettings(strategy="allreduce", balance="auto"),
    "async": RunSettings(strategy="async"),
    "balanced dssp": RunSettings(strategy="dssp", balance="auto"),
}


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


class Bench:
    """The data of a block and this rank's way through them."""

    def __init__(self, environment: Environment, seconds: float) -> None:
        assert environment.arena is not None
        self._environment, self._arena = environment, environment.arena
        self._loss, self.seconds = nn.CrossEntropyLoss(), seconds
        self.figures: dict[str, float] = {}

    def calibrate(self) -> None:
        """The first rank, alone and at full speed, finds a batch that is long enough."""
        cells = self._arena.region("calibration", 2, torch.float64).numpy()
        if self._environment.rank == 0:
            half, seconds = 16, 0.0
            while seconds < LEAST_STEP:
                half *= 2
                seconds = self._quickest_step(half)
            cells[:] = half, seconds
        self._arena.barrier()
        half, seconds = int(cells[0]), float(cells[1])
        self.batch, speed = 2 * half, half / seconds
        blocks = max(8, round(1.25 * speed * self.seconds / self.batch))
        self.samples = blocks * self.batch
        self.x, self.y = _data(self.samples)
        self.figures = {"batch": self.batch, "step_seconds": seconds, "samples": self.samples}

    def _quickest_step(self, batch: int, tries: int = 12) -> float:
        """Of several: what else this machine does must not make a small batch look long."""
        return min(1.0 / self._steps_alone(batch, seconds=0.0, least=1) for _ in range(tries))

    def _steps_alone(self, batch: int, seconds: float, least: int = 3) -> float:
        """Bare steps a second of this rank while the others wait."""
        (x, y), model = _data(batch), make_cnn()
        optimizer, steps = make_optimizer(model), 0
        self._bare(model, optimizer, x, y)
        began = time.perf_counter()
        while steps < least or time.perf_counter() - began < seconds:
            self._bare(model, optimizer, x, y)
            steps += 1
        return steps / (time.perf_counter() - began)

    def _bare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
    ) -> None:
        optimizer.zero_grad()
        self._loss(model(x), y).backward()
        optimizer.step()

    def alone(self, rank: int, share: float) -> Callable[[], float]:
        """Samples a second of ``rank`` alone, with the batch that is its share of the speed."""
        batch = max(1, round(self.batch * share))
        cell = self._arena.region(f"alone {rank}", 1, torch.float64).numpy()

        def block() -> float:
            self._arena.barrier()
            if self._environment.rank == rank:
                cell[0] = batch * self._steps_alone(batch, self.seconds / 2)
            self._arena.barrier()
            return float(cell[0])

        return block

    def together(self, settings: RunSettings) -> tuple[Callable[[], float], SharedEngine]:
        model = make_cnn()
        environment = dataclasses.replace(self._environment, settings=settings)
        run = join_with(model, make_optimizer(model), environment=environment)
        engine = run.engine
        assert isinstance(engine, SharedEngine)

        def train(samples: int) -> float:
            engine.barrier()
            began = time.perf_counter()
            for x, y in run.batches((self.x[:samples], self.y[:samples]), batch=self.batch):
                run.backward(self._loss(model(x), y))
                run.step()
            engine.barrier()
            return samples / (time.perf_counter() - began)

        if settings.balance == "auto":  # outside the measured blocks, however short those are
            short = min(self.samples, 8 * self.batch)
            for _ in range(0, WARM_STEPS * self.batch, short):
                train(short)
        return lambda: train(self.samples), engine


def _data(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 1, 28, 28), torch.randint(0, 10, (samples,))


def _hold(arena: Arena, rank: int) -> None:
    if rank == SLOW:
        join_named_group()
    arena.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--share", type=float, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment = detect()
    assert environment.arena is not None
    bench = Bench(environment, chosen.seconds)
    bench.calibrate()
    _hold(environment.arena, environment.rank)
    fast = 1.0 / (1.0 + chosen.share)
    blocks = {"alone 0": bench.alone(0, fast), "alone 1": bench.alone(SLOW, 1.0 - fast)}
    engines = {}
    for name, settings in STRATEGIES.items():
        blocks[name], engines[name] = bench.together(settings)
    found = alternate(blocks, chosen.rounds)
    shares = {name: list(engine._control.watch.shares) for name, engine in engines.items()}
    give({"speeds": found, "shares": shares, **bench.figures})


if __name__ == "__main__":
    main()
