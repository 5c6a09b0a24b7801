"""How fast the planner's engines are: worker-steps per second on one core, and against SimPy.

``python -m benchmarks timing``: one JSON line per figure. SimPy is in the extra ``bench``.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import report, spread
from phalanx.plan.timing.free import run_free
from phalanx.plan.timing.lockstep import run_lockstep
from phalanx.plan.timing.work import FreeCluster, Outcome
from phalanx.policies.admission import Dynamic, Free, Rule, Stale

MEAN, VARIATION, LATENCY, EXCHANGE, LOCAL = 0.05, 0.1, 1e-4, 0.01, 8
ROUNDS = 5
LARGEST, LONGEST = 10_000, 1_000
"""Workers and steps of the whole runs."""


def cluster(workers: int, links: float = math.inf, slowest: float = 1.0) -> FreeCluster:
    """A server that is busy for nine tenths of the time; the last worker is ``slowest`` times as
    slow as the first, the others are in between."""
    compute = MEAN * np.linspace(1.0, slowest, workers)
    return FreeCluster(
        compute=compute,
        variation=VARIATION,
        homes=range(workers),
        servers=[workers],
        push_bytes=1e6,
        reply_bytes=1e6,
        sending=[links] * (workers + 1),
        receiving=[links] * (workers + 1),
        latency=LATENCY,
        update=0.9 / float((1.0 / compute).sum()),
    )


def lockstep(workers: int, steps: int, every: int = 1) -> Outcome:
    means = np.full(workers, MEAN)
    return run_lockstep(means, VARIATION, EXCHANGE, steps, seed=1, every=every)


def pushing(
    rule: Rule, workers: int, steps: int, links: float = math.inf, slowest: float = 1.0
) -> Outcome:
    # As trainings do it: who is quick takes more.
    unlike = slowest > 1.0
    return run_free(cluster(workers, links, slowest), rule, steps, seed=1, by_samples=unlike)


ENGINES: dict[str, Callable[[int, int], Outcome]] = {
    "lockstep": lockstep,
    "localsgd": lambda workers, steps: lockstep(workers, steps, LOCAL),
    "async": lambda workers, steps: pushing(Free(), workers, steps),
    "ssp": lambda workers, steps: pushing(Stale(3), workers, steps),
}
UNLIKE: dict[str, Callable[[int, int], Outcome]] = {
    "async, speeds 1 to 2": lambda w, s: pushing(Free(), w, s, slowest=2.0),
    "async, speeds 1 to 4": lambda w, s: pushing(Free(), w, s, slowest=4.0),
    "ssp, speeds 1 to 2": lambda w, s: pushing(Stale(3), w, s, slowest=2.0),
    "ssp, speeds 1 to 4": lambda w, s: pushing(Stale(3), w, s, slowest=4.0),
}


def by_simpy(workers: int, steps: int) -> float:
    """``async`` as one would write it with SimPy: a process for each worker, one server."""
    simpy: Any = importlib.import_module("simpy")
    environment, random = simpy.Environment(), np.random.default_rng(1)
    server = simpy.Resource(environment, 1)
    busy, sigma = cluster(workers).update, math.sqrt(math.log1p(VARIATION**2))
    drawn = iter(random.lognormal(-(sigma**2) / 2, sigma, workers * steps).tolist())

    def worker() -> Any:
        for _ in range(steps):
            yield environment.timeout(MEAN * next(drawn) + LATENCY)
            with server.request() as request:
                yield request
                yield environment.timeout(busy)
            yield environment.timeout(LATENCY)

    for _ in range(workers):
        environment.process(worker())
    environment.run()
    return float(environment.now)


def speed(run: Callable[[int, int], object], workers: int, steps: int) -> float:
    """Worker-steps per second of this core."""
    began = time.process_time()
    run(workers, steps)
    return workers * steps / (time.process_time() - began)


def speeds() -> None:
    for workers, steps, bar in ((64, 3_000, 0.5), (1_000, 300, 1.0), (LARGEST, 60, 1.0)):
        for name, run in (ENGINES | UNLIKE).items():
            found = [speed(run, workers, steps) / 1e6 for _ in range(ROUNDS)]
            title = f"{name}, {workers} workers, million worker-steps/s"
            report(title, bar=f">= {bar}", **spread(found))
    for title, run, workers, steps in (
        ("bsp by pushes", lambda w, s: pushing(Stale(0), w, s), 1_000, 300),
        ("dssp", lambda w, s: pushing(Dynamic(2, 8), w, s), 64, 500),
        ("dssp", lambda w, s: pushing(Dynamic(2, 8), w, s), 1_000, 60),
        ("async over shared links", lambda w, s: pushing(Free(), w, s, 1e9), 8, 500),
        ("async over shared links", lambda w, s: pushing(Free(), w, s, 1e9), 64, 40),
    ):
        found = [speed(run, workers, steps) / 1e6 for _ in range(ROUNDS)]
        report(f"{title}, {workers} workers, million worker-steps/s", **spread(found))


def against_simpy(workers: int = 1_000, steps: int = 30) -> None:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(speed(ENGINES["async"], workers, 10 * steps))
        theirs.append(speed(by_simpy, workers, steps))
    report(f"async by SimPy, {workers} workers, worker-steps/s", **spread(theirs))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    report(f"async, {workers} workers: times as fast as SimPy", bar=">= 20", **spread(ratios))
    same = ENGINES["async"](workers, steps).seconds / by_simpy(workers, steps)
    report(f"async, {workers} workers: virtual time, as a share of SimPy's", value=same)


def whole_runs() -> None:
    for name, run in ENGINES.items():
        began = time.perf_counter()
        found = run(LARGEST, LONGEST)
        seconds = time.perf_counter() - began
        title = f"{name}, {LARGEST} workers x {LONGEST} steps, s"
        report(title, bar="<= 10", value=seconds, virtual_seconds=found.seconds)


def main(words: list[str]) -> None:
    if words:
        raise SystemExit("usage: python -m benchmarks timing")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    speeds()
    against_simpy()
    whole_runs()
