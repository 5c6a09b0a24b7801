"""``simulate --time-only``: predict the speed of a large cluster without computing gradients."""

from __future__ import annotations

import numpy as np

from phalanx.cli.output import Output
from phalanx.cli.planning.virtual_cluster import VirtualMachines
from phalanx.cli.request.options import RunOptions
from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.settings import VirtualCluster
from phalanx.core.spec import Phase, Spec
from phalanx.plan.cost.codec_costs import codec_cost
from phalanx.plan.cost.lockstep import steps_between_meetings
from phalanx.plan.timing.free import run_free, run_groups
from phalanx.plan.timing.lockstep import run_lockstep
from phalanx.plan.timing.work import Floats, FreeCluster, Outcome
from phalanx.policies.admission import rule_of
from phalanx.policies.collective_choice import exchange_seconds
from phalanx.policies.collective_cost import LinkSpeed
from phalanx.policies.grouping import teams_of

MOST_WORKERS, STEPS = 10_000, 1000
BATCH = 32
"""Samples of a worker's step, if neither an option nor a profile gives them."""


def run_timed(
    phase: Phase, cluster: VirtualCluster, compute: Floats, gradient: float, steps: int, seed: int
) -> Outcome:
    """Simulate with the engine that suits the strategy; ``compute``: seconds per worker's step."""
    update = max(w.update for w in cluster.workers)
    codec, coded = codec_cost(phase.codec), phase.codec is not None
    coding = gradient * codec.coding
    homes = [cluster.home(rank) for rank in range(len(compute))]

    def meeting(places: set[int]) -> float:
        """Return the seconds of an exchange among the machines ``places``."""
        if len(places) < 2 or not cluster.has_links:
            return 0.0
        link = LinkSpeed(cluster.latency, cluster.slowest_link or float("inf"))
        name = str(asked) if (asked := phase.options.get("topology")) else None
        sent = exchange_seconds(name, len(places), gradient * codec.ratio, link, coded=coded)
        return sent + (1 + len(places)) * coding

    if phase.name == "allreduce" or phase.traits.local:
        exchange, every = meeting(set(homes)), steps_between_meetings(phase)
        if phase.traits.local:
            compute = compute + update
        else:
            exchange += update
        return run_lockstep(compute, cluster.variation, exchange, steps, seed=seed, every=every)
    update = (update + coding) / len(cluster.servers)
    free = _free(cluster, compute + coding, gradient, gradient * codec.ratio, update)
    if phase.traits.grouped:
        machines = [str(home) for home in homes]
        teams = teams_of(phase, len(compute), lambda: machines, (1.0 / compute).tolist())
        meetings = [meeting({homes[rank] for rank in team}) for team in teams]
        return run_groups(free, teams, meetings, steps, seed=seed, by_samples=True)
    lost = [(rank, step - 1) for rank, step in cluster.failures.items()]
    rule, by_samples = rule_of(phase.name, phase.options), phase.name != "bsp"
    return run_free(free, rule, steps, seed=seed, by_samples=by_samples, lost=lost)


def _free(
    cluster: VirtualCluster, compute: Floats, gradient: float, pushed: float, update: float
) -> FreeCluster:
    rates = {cluster.home(r): w.bandwidth or float("inf") for r, w in enumerate(cluster.workers)}
    places = {home: place for place, home in enumerate(rates)}
    return FreeCluster(
        compute=compute,
        variation=cluster.variation,
        homes=[places[cluster.home(rank)] for rank in range(len(compute))],
        servers=[places[cluster.home(rank)] for rank in cluster.servers],
        push_bytes=pushed,
        reply_bytes=gradient,
        sending=list(rates.values()),
        receiving=list(rates.values()),
        latency=cluster.latency,
        update=update,
    )


def show_time(machines: VirtualMachines, spec: Spec, options: RunOptions, out: Output) -> int:
    """Print samples/s, waiting and staleness; return the exit code."""
    if len(spec.phases) > 1 or spec.phases[0].name == "single":
        raise InputError(
            f"--time-only cannot time '{spec.text}'",
            "Give one strategy of several workers, without a switch; or leave out --time-only.",
        )
    names = machines.seats(options.workers)
    workers, profile, asked = len(names), machines.profile, machines.asked
    if workers > MOST_WORKERS:
        raise InputError(
            f"--workers {workers} is too many", f"--time-only takes at most {MOST_WORKERS}."
        )
    if profile is None and asked.step_seconds is None:
        raise InputError(
            "the time of this script's steps is unknown",
            "Measure it: phalanx plan SCRIPT; or give --step-seconds 10ms+0.2ms",
        )
    cluster = machines.cluster(names, spec.text)
    if profile is None and cluster.has_links:
        raise InputError(
            "the size of this script's gradient is unknown", "Measure it: phalanx plan SCRIPT"
        )
    (phase,) = spec.phases
    if cluster.failures and (phase.traits.lockstep or phase.traits.grouped):
        raise InputError(
            f"--time-only with --fail cannot time '{spec.text}'",
            "Its workers wait for each other, so a lost worker ends the run; try async or ssp.",
        )
    known = profile.batch if profile and asked.step_seconds is None else BATCH * workers
    batch = options.batch or known
    samples = batch / workers
    if samples < 1:
        raise InputError(
            f"a batch of {batch} is too small for {workers} workers",
            f"Give a larger one: --batch {BATCH * workers}",
        )
    size = profile.gradient_bytes if profile else 0
    compute = np.array([w.fixed + w.each * samples for w in cluster.workers])
    compute /= asked.speeds_of(workers) or 1.0
    found = run_timed(phase, cluster, compute, size, STEPS, options.seed)
    _tell(found, workers, samples, spec.text, out)
    return 0


def _tell(found: Outcome, workers: int, samples: float, strategy: str, out: Output) -> None:
    rate = found.steps * samples / found.seconds if found.seconds else 0.0
    waited = float(found.waited.mean()) / found.seconds if found.seconds else 0.0
    each = f"{words.count(samples)} samples per worker and step"
    out.say(f"simulated, time only: {strategy}, {workers} workers, {each}", "bold")
    took = f"{words.seconds(found.seconds)} for {words.count(found.steps)} steps in total"
    out.say(f"{words.count(rate)} samples/s · {took}")
    out.say(f"workers wait {words.rough_share(waited)} of the time, on average")
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
