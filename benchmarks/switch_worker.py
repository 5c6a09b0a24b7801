"""One rank: a training that goes through every ordered pair of strategies, one switch an epoch.

A pause is what the run itself notes for a switch: from the arrival of the last worker to the
moment at which the first one asks for its next batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import sys

import torch
from torch import nn

from benchmarks.harness import give
from benchmarks.step_worker import BATCH, make_mlp, make_optimizer
from phalanx.core.settings import RunSettings
from phalanx.observe.events.event_types import Steps, Switched, read_events
from phalanx.train.api.join import join_with
from phalanx.train.start.environment import Environment, detect

STRATEGIES = (
    "allreduce",
    "async",
    "bsp",
    "ssp:bound=3",
    "dssp",
    "groups:size=2",
    "localsgd:every=8",
    "diloco:every=20",
)


def circuit(count: int) -> list[int]:
    """Every ordered pair of ``count`` things once, as one way from 0 back to 0 (Hierholzer)."""
    left = {a: [b for b in range(count) if b != a] for a in range(count)}
    stack, way = [0], []
    while stack:
        here = stack[-1]
        if left[here]:
            stack.append(left[here].pop())
        else:
            way.append(stack.pop())
    return way[::-1]


def spec_of(way: list[int]) -> str:
    names = [STRATEGIES[place] for place in way]
    phases = [f"{name}@{end}e" for end, name in enumerate(names[:-1], start=1)]
    return "/".join([*phases, names[-1]])


def train(environment: Environment, way: list[int], steps: int) -> None:
    settings = RunSettings(strategy=spec_of(way), epochs=len(way))
    torch.manual_seed(0)  # all workers train on the same data
    x, y = torch.randn(steps * BATCH, 784), torch.randint(0, 10, (steps * BATCH,))
    model, loss = make_mlp(), nn.CrossEntropyLoss()
    run = join_with(
        model,
        make_optimizer("sgd", model),
        environment=dataclasses.replace(environment, settings=settings),
    )
    for _ in run.epochs(len(way)):
        for features, targets in run.batches((x, y), batch=BATCH):
            run.backward(loss(model(features), targets))
            run.step()


def read(environment: Environment, way: list[int]) -> dict[str, object]:
    assert environment.paths is not None
    pauses: dict[str, list[float]] = {}
    seconds: list[float] = []
    for event in read_events(environment.paths.events_of(0)):
        if isinstance(event, Switched):
            pauses.setdefault(f"{event.before} > {event.after}", []).append(event.pause)
        if isinstance(event, Steps) and STRATEGIES[way[event.epoch % len(way)]] == "allreduce":
            begins = event.began
            seconds += [b - a for a, b in itertools.pairwise(begins)]
    return {"pauses": pauses, "step": statistics.median(seconds)}


def main() -> None:
    rounds, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment, way = detect(), circuit(len(STRATEGIES))
    for _ in range(rounds):
        train(environment, way, steps)
    if environment.rank == 0:
        give(read(environment, way))


if __name__ == "__main__":
    main()
