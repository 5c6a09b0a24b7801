"""``simulate --time-only``: how fast a large cluster would be, without its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.cli.planning.virtual_cluster import (
    Known,
    cluster_for,
    seats_of,
    speeds_for,
    what_is_known,
)
from phalanx.cli.planning.virtual_values import ClusterWishes
from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.settings import VirtualCluster
from phalanx.plan.timing.cluster import FreeCluster
from phalanx.plan.timing.free import run_free, run_groups
from phalanx.plan.timing.lockstep import run_lockstep
from phalanx.plan.timing.work import Outcome
from phalanx.rules.admission import Dynamic, Free, Rule, Stale
from phalanx.rules.collective_choice import choose
from phalanx.rules.collective_cost import COSTS, LinkSpeed

if TYPE_CHECKING:
    from phalanx.cli.output import Output
    from phalanx.cli.request.options import RunOptions
    from phalanx.core.spec import Phase, Spec

MOST_WORKERS = 10_000
STEPS = 1000
BATCH = 32
"""Samples of a worker's step, where nothing says otherwise."""


@dataclass(frozen=True)
class Task:
    """What is timed."""

    phase: Phase
    cluster: VirtualCluster
    speeds: list[float]
    samples: float
    """Of a worker's step."""
    steps: int
    gradient: float
    """Bytes."""
    seed: int

    @property
    def lost(self) -> list[tuple[int, int]]:
        return [(rank, step - 1) for rank, step in self.cluster.failures.items()]

    @property
    def compute(self) -> list[float]:
        return [
            (w.fixed + w.each * self.samples) / speed
            for w, speed in zip(self.cluster.workers, self.speeds, strict=True)
        ]


def run_timed(task: Task) -> Outcome:
    """By the engine that suits the strategy."""
    phase, cluster = task.phase, task.cluster
    update = max(w.update for w in cluster.workers)
    if phase.name == "allreduce" or phase.traits.local:
        every = int(phase.options.get("every", 8 if phase.name == "localsgd" else 50))
        every = every if phase.traits.local else 1
        compute = np.asarray(task.compute) + (update if phase.traits.local else 0.0)
        exchange = _all_reduce(task, _hosts(task)) + (0.0 if phase.traits.local else update)
        return run_lockstep(
            compute, cluster.variation, exchange, task.steps,
            seed=task.seed, every=every, lost=task.lost,
        )  # fmt: skip
    free = _free(task, update)
    if phase.traits.grouped:
        size, workers = int(phase.options.get("size", 2)), len(cluster.workers)
        teams = [tuple(range(i, min(i + size, workers))) for i in range(0, workers, size)]
        free = replace(free, homes=[free.homes[team[0]] for team in teams])
        meeting = [_all_reduce(task, len({cluster.home(r) for r in team})) for team in teams]
        return run_groups(free, teams, meeting, task.steps, seed=task.seed, by_samples=True)
    return run_free(
        free, _rule(phase), task.steps, seed=task.seed, by_samples=phase.name != "bsp",
        lost=task.lost,
    )  # fmt: skip


def _hosts(task: Task) -> int:
    return len({task.cluster.home(rank) for rank in range(len(task.cluster.workers))})


def _all_reduce(task: Task, hosts: int) -> float:
    cluster = task.cluster
    if hosts < 2 or not cluster.has_links:
        return 0.0
    link = LinkSpeed(cluster.latency, cluster.slowest_link or float("inf"))
    asked = task.phase.options.get("topology")
    chosen = choose(str(asked) if asked else None, hosts, int(task.gradient), link.latency or None)
    return COSTS[f"all_reduce.{chosen}"](hosts, task.gradient).seconds(link)


def _free(task: Task, update: float) -> FreeCluster:
    cluster = task.cluster
    homes: dict[int, tuple[int, float | None]] = {}
    for rank in range(len(cluster.workers)):
        homes.setdefault(cluster.home(rank), (len(homes), cluster.workers[rank].bandwidth))
    rates = [bandwidth or float("inf") for _, bandwidth in homes.values()]
    return FreeCluster(
        compute=task.compute,
        variation=cluster.variation,
        homes=[homes[cluster.home(rank)][0] for rank in range(len(cluster.workers))],
        servers=[homes[cluster.home(rank)][0] for rank in cluster.servers],
        push_bytes=task.gradient,
        reply_bytes=task.gradient,
        sending=rates,
        receiving=rates,
        latency=cluster.latency,
        update=update / len(cluster.servers),
    )


def _rule(phase: Phase) -> Rule:
    options = phase.options
    if phase.name == "bsp":
        return Stale(0)
    if phase.name == "ssp":
        return Stale(int(options.get("bound", 3)))
    if phase.name == "dssp":
        return Dynamic(int(options.get("low", 2)), int(options.get("high", 8)))
    return Free()


def show_time(
    ctx: Any,
    script: Path,
    module: bool,
    spec: Spec,
    options: RunOptions,
    wishes: ClusterWishes,
    steps: int | None,
    gradient: str | None,
    out: Output,
) -> int:
    """Print samples/s, waiting and staleness; the exit code."""
    from phalanx.cli.request.request import check, check_at_least
    from phalanx.cli.request.values import read_size

    if len(spec.phases) > 1 or spec.phases[0].name == "single":
        raise InputError(
            f"--time-only cannot time '{spec.text}'",
            "Give one strategy of several workers; without --time-only any can be simulated.",
        )
    check_at_least("--steps", steps, 1)
    request = check(replace(options, workers=1), script, ctx.obj, module=module)
    known, bytes_given = what_is_known(request), read_size("--gradient", gradient)
    names = seats_of(request, options.workers)
    workers = len(names)
    if workers > MOST_WORKERS:
        raise InputError(
            f"--workers {workers} is too many", f"--time-only has at most {MOST_WORKERS}."
        )
    _check_known(known, wishes, bytes_given)
    job = request.job(spec.text, None)
    cluster = cluster_for(job, wishes, known, pool=options.pool is not None, names=names)
    profile = known.profile
    batch = options.batch or (profile.batch if profile else None)
    samples = options.batch_per_worker or (batch / workers if batch else BATCH)
    if samples < 1:
        raise InputError(
            f"a batch of {batch} is too small for {workers} workers",
            f"Give a larger one: --batch {BATCH * workers}, or --batch-per-worker {BATCH}",
        )
    size = bytes_given if bytes_given is not None else profile.gradient_bytes if profile else 0
    task = Task(
        spec.phases[0], cluster, speeds_for(wishes, workers) or [1.0] * workers, samples,
        steps or STEPS, float(size), options.seed,
    )  # fmt: skip
    _tell(task, run_timed(task), spec.text, out)
    return 0


def _check_known(known: Known, wishes: ClusterWishes, size: int | None) -> None:
    if known.profile is None and wishes.step_seconds is None:
        raise InputError(
            "nothing is known about the time of this script's steps",
            "Measure it: phalanx plan SCRIPT; or give --step-seconds 10ms+0.2ms",
        )
    if known.profile is None and size is None and wishes.rate is not None:
        raise InputError(
            "nothing is known about the size of this script's gradient",
            "Measure it: phalanx plan SCRIPT; or give --gradient 3.4MB",
        )


def _tell(task: Task, found: Outcome, strategy: str, out: Output) -> None:
    workers = len(task.cluster.workers)
    rate = found.steps * task.samples / found.seconds if found.seconds else 0.0
    waited = float(found.waited.mean()) / found.seconds if found.seconds else 0.0
    out.say(f"simulated, time only: {strategy}, {workers} workers", "bold")
    out.say(
        f"{words.count(rate)} samples/s · {words.seconds(found.seconds)} for {found.steps} steps"
    )
    out.say(f"waiting {words.rough_share(waited)} of a worker's time, on average")
    if len(found.staleness):
        most = len(found.staleness) - 1
        out.say(f"staleness {found.mean_staleness:.1f} updates on average, {most} at most")
    out.result(
        {
            "simulated": True,
            "time_only": True,
            "strategy": strategy,
            "workers": workers,
            "seconds": found.seconds,
            "steps": found.steps,
            "samples_per_second": rate,
            "wait_share": waited,
            "mean_staleness": found.mean_staleness,
            "staleness": {n: int(c) for n, c in enumerate(found.staleness.tolist()) if c},
        }
    )
