"""Which strategy wins where: 10 to 10,000 workers, 1 M to 1 B parameters, 1 to 400 Gbit/s.

``python -m benchmarks scale [--svg FILE] [--workers 10,100] [--parameters 25e6] [--rates 1,10]``:
one JSON line per cell. All of it is predicted, by the engine of ``phalanx simulate --time-only``;
nothing is measured. What is assumed: docs/explanation/scale.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import report
from benchmarks.scale_map import Shown, draw
from phalanx.cli.planning.time_only import run_timed
from phalanx.core.settings import VirtualCluster, VirtualWorker
from phalanx.core.spec import parse_spec
from phalanx.plan.cost.model import is_same_mathematics
from phalanx.plan.servers import MACHINES_PER_SERVER

WORKERS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
PARAMETERS = (1e6, 25e6, 1e9)
RATES = (1.0, 2.5, 10.0, 25.0, 100.0, 400.0)
"""Gbit/s of each machine's link, in each direction."""
STEP_SECONDS = {1e6: 0.05, 25e6: 0.1, 1e9: 1.0}
"""Forward and backward of a worker's batch, on average."""
SAMPLES = 32
JITTER, LATENCY, NUMBER, MEMORY = 0.05, 100e-6, 4, 100e9
"""Standard deviation of a step; seconds of a message; bytes of a number; bytes a second at which
the optimizer's step reads a gradient, reads a parameter and writes it."""
STEPS, SHARED_STEPS = 96, 480
"""Steps of each worker; those of all of them where links are shared exactly, which takes long."""
SMALL = 32
"""Workers up to which they are. Beyond, what goes through servers is an upper bound: see ``exact``.
"""
CLEARLY = 1.05
"""As the planner has it: who is faster by less does not win against one before it in the list."""

ALONE = "single"
THROUGH_SERVERS = ("bsp", "async", "ssp", "groups")
STRATEGIES = (
    "allreduce",
    "allreduce:topology=ring",
    "allreduce:topology=butterfly",
    "allreduce:topology=tree",
    "bsp",
    "localsgd:every=8",
    "async",
    "ssp:bound=3",
    "groups:size=8",
)


@dataclass(frozen=True)
class Cell:
    workers: int
    parameters: float
    rate: float
    """Gbit/s."""

    @property
    def seconds(self) -> float:
        """Of a step's computing: that of the model that is nearest in size."""
        nearest = min(STEP_SECONDS, key=lambda size: abs(np.log(size / self.parameters)))
        return STEP_SECONDS[nearest]

    @property
    def ideal(self) -> float:
        """Samples a second of workers that compute and do nothing else."""
        return self.workers * SAMPLES / self.seconds

    def cluster(self) -> VirtualCluster:
        """Each worker has a machine of its own, and every second of them is a server too."""
        update = self.parameters * 3 * NUMBER / MEMORY
        one = VirtualWorker(
            fixed=self.seconds, each=0.0, update=update, bandwidth=self.rate * 1e9 / 8
        )
        return VirtualCluster(
            workers=[one] * self.workers,
            variation=JITTER,
            latency=LATENCY,
            servers=tuple(range(-(-self.workers // MACHINES_PER_SERVER))),
        )

    def speed(self, strategy: str) -> float:
        """Samples a second."""
        if strategy == ALONE:
            return self.ideal / self.workers
        phase, compute = parse_spec(strategy).phases[0], np.full(self.workers, self.seconds)
        shared = self.workers <= SMALL and phase.name in THROUGH_SERVERS
        steps = SHARED_STEPS // self.workers if shared else STEPS
        found = run_timed(phase, self.cluster(), compute, self.parameters * NUMBER, steps, seed=0)
        return found.steps * SAMPLES / found.seconds


@dataclass(frozen=True)
class Found:
    """The speeds of a cell, and its winners."""

    cell: Cell
    speeds: dict[str, float]

    def efficiency(self, strategy: str) -> float:
        return self.speeds[strategy] / self.cell.ideal

    @property
    def exact(self) -> str:
        """The fastest that computes what one process would.

        Not ``bsp`` of many workers: all of them send at once, to one server after another, and how
        long they are in each other's way was not measured. ``async`` spreads its pushes by itself.
        """
        named = [s for s in self.speeds if s != "allreduce" and is_same_mathematics(parse_spec(s))]
        if self.cell.workers > SMALL:
            named.remove("bsp")
        return self._first(named)

    @property
    def fastest(self) -> str:
        others = [s for s in self.speeds if not is_same_mathematics(parse_spec(s))]
        return self._first([self.exact, *others])

    def _first(self, names: list[str]) -> str:
        fastest = max(self.speeds[name] for name in names)
        return next(name for name in names if CLEARLY * self.speeds[name] >= fastest)

    def shown(self) -> Shown:
        winners = {"exact": self.exact, "fastest": self.fastest}
        shares = {row: (name, self.efficiency(name)) for row, name in winners.items()}
        return Shown(self.cell.workers, self.cell.parameters, self.cell.rate, shares)

    def tell(self) -> None:
        cell = self.cell
        report(
            f"scale, {cell.workers} workers, {cell.parameters:g} parameters, {cell.rate:g} Gbit/s",
            same_mathematics=self.exact,
            fastest=self.fastest,
            share_of_ideal={s: round(self.efficiency(s), 4) for s in self.speeds},
            samples_per_second={s: float(f"{speed:.5g}") for s, speed in self.speeds.items()},
        )


def predict(cell: Cell) -> Found:
    return Found(cell, {strategy: cell.speed(strategy) for strategy in (ALONE, *STRATEGIES)})


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks scale", description=__doc__)
    parser.add_argument("--workers", type=_numbers, default=WORKERS)
    parser.add_argument("--parameters", type=_numbers, default=PARAMETERS)
    parser.add_argument("--rates", type=_numbers, default=RATES, help="Gbit/s")
    parser.add_argument("--svg", type=Path, help="draw the map into this file")
    asked = parser.parse_args(words)
    found = []
    for parameters in asked.parameters:
        for rate in asked.rates:
            for workers in asked.workers:
                found.append(predict(Cell(int(workers), parameters, rate)))
                found[-1].tell()
    if asked.svg is not None:
        asked.svg.write_text(draw([each.shown() for each in found]), encoding="utf-8")
