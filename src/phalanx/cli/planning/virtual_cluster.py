"""From options to a cluster that is not there: curves from the profile, links from the probe."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from phalanx.cli.planning.virtual_values import (
    ClusterWishes,
    read_failures,
    read_jitter,
    read_short,
    read_step,
    read_stragglers,
)
from phalanx.cli.request.request import speeds_of
from phalanx.cli.request.values import read_rate, read_slow
from phalanx.core.errors import InputError
from phalanx.core.settings import VirtualCluster, VirtualWorker
from phalanx.core.spec import parse_spec
from phalanx.rules.collective_choice import USUAL_LATENCY

if TYPE_CHECKING:
    from phalanx.cli.request.request import Request
    from phalanx.launch.launchers.launcher import Job
    from phalanx.plan.job import JobProfile, MachineCosts
    from phalanx.pool.measured import Probe

UNKNOWN_EACH = 1e-3
"""Seconds of a sample, where nothing is known."""
UNKNOWN = (
    "note: no profile of this script: a sample takes 1 ms of each worker; "
    "measure with phalanx plan, or give --step-seconds"
)


@dataclass(frozen=True)
class Known:
    """What is known of the job and the machines."""

    profile: JobProfile | None
    probe: Probe | None

    def costs(self, machine: str) -> MachineCosts | None:
        return self.profile.costs.get(machine) if self.profile else None


def what_is_known(request: Request) -> Known:
    """From files only: nothing is measured."""
    from phalanx.launch.profile.kept_profiles import job_key, read_kept
    from phalanx.launch.profile.machine_kinds import Kinds
    from phalanx.launch.profile.profile_job import plain_settings
    from phalanx.pool.measured import read_probe

    probe = read_probe(request.options.pool) if request.options.pool else None
    asked, kinds = (
        plain_settings(request.job("single", request.options.batch).settings),
        Kinds(probe),
    )
    # How long it trains, and on how much, makes no difference to its curves.
    plain = msgspec.structs.replace(asked, epochs=None, batch=None, batch_per_worker=None)
    keys = [job_key(request.script, request.words, chosen) for chosen in (asked, plain)]
    kept = {
        m.name: next((p for key in keys if (p := read_kept(key, kinds.name(m), 0.0))), None)
        for m in request.machines
    }
    costs = {name: next(iter(p.costs.values())) for name, p in kept.items() if p}
    first = next((p for p in kept.values() if p), None)
    return Known(msgspec.structs.replace(first, costs=costs) if first else None, probe)


def speeds_for(wishes: ClusterWishes, workers: int) -> list[float] | None:
    given = read_slow(wishes.speeds, "--speeds")
    if len(given) > workers:
        raise InputError(
            f"--speeds has {len(given)} speeds for {workers} workers",
            f"Give at most {workers}, or --workers {len(given)}.",
        )
    slowed = read_stragglers(wishes.straggler, workers)
    speeds = speeds_of(given, workers) or ([1.0] * workers if slowed else None)
    for rank, factor in slowed.items():
        assert speeds is not None
        speeds[rank] /= factor
    return speeds


def seats_of(request: Request, asked: int | None) -> list[str]:
    """The machine of each worker, where nothing is started and so there is no limit."""
    from phalanx.plan.placement import natural_workers, share_out

    machines = request.machines
    shares = share_out(machines, natural_workers(machines) if asked is None else asked)
    return [m.name for m, share in zip(machines, shares, strict=True) for _ in range(share)]


def cluster_for(
    job: Job, wishes: ClusterWishes, known: Known, *, pool: bool, names: list[str] | None = None
) -> VirtualCluster:
    """One worker for each seat of the plan, or on each of the machines of ``names``; without a
    pool each is alone on one."""
    from phalanx.plan.cost.network import Network

    names = names or [machine.name for machine, _ in job.plan.seats]
    counts, network = Counter(names), Network(known.probe)
    rate, latency = read_rate(wishes.rate), read_short("--latency", wishes.latency)
    linked = pool or rate is not None
    step, jitter = read_step(wishes.step_seconds), read_jitter(wishes.jitter)

    def worker(name: str) -> VirtualWorker:
        costs = known.costs(name)
        crowd = counts[name] / max(1, _natural(job, name)) if pool else 1.0
        fixed, each = step or (0.0, UNKNOWN_EACH)
        if costs is not None and step is None:
            work = costs.work
            fixed, each = work.fixed * crowd, (work.each + costs.input) * crowd
        measured = min(network.sending(name), network.receiving(name))
        return VirtualWorker(
            fixed=fixed,
            each=each,
            update=costs.update if costs else 0.0,
            evaluate=costs.evaluate if costs else 0.0,
            bandwidth=(rate / 8 if rate is not None else measured) if linked else None,
            home=list(counts).index(name) if pool else None,
        )

    known_latency = network.link(names)[0].latency if pool else USUAL_LATENCY
    varies = max((c.work.variation for n in counts if (c := known.costs(n))), default=0.0)
    cluster = VirtualCluster(
        workers=[worker(name) for name in names],
        variation=varies if jitter is None else jitter,
        latency=latency if latency is not None else known_latency if linked else 0.0,
        failures=read_failures(wishes.fail, len(names)),
    )
    return msgspec.structs.replace(cluster, servers=_servers(job.plan.strategy, cluster))


def _natural(job: Job, name: str) -> int:
    """Workers that a machine has if no number is asked for."""
    return next(m.gpus or 1 for m in job.plan.machines if m.name == name)


def _servers(strategy: str, cluster: VirtualCluster) -> tuple[int, ...]:
    """As between machines: by number, or one for two machines, on the best links."""
    from phalanx.plan.servers import Host, place_servers

    firsts: dict[int, int] = {}
    for rank in range(len(cluster.workers)):
        firsts.setdefault(cluster.home(rank), rank)
    asked = [p.options["servers"] for p in parse_spec(strategy).phases if "servers" in p.options]
    hosts = [
        Host(str(rank), (cluster.workers[rank].bandwidth or 0.0) * 8, 1) for rank in firsts.values()
    ]
    names = place_servers(hosts, int(asked[0]) if asked else None)
    return tuple(int(name) for name in names)


def simulated(request: Request, job: Job, wishes: ClusterWishes, known: Known) -> Job:
    """The same job in virtual time, in this process."""
    from phalanx.launch.launchers.launcher import Fleet
    from phalanx.plan.plan import Slot
    from phalanx.pool.here import this_machine

    if request.adopt:
        raise InputError(
            "a simulation needs a script that calls Phalanx: its workers are threads",
            "Let 'phalanx adapt' write such a script.",
        )
    pool = request.options.pool is not None
    cluster = cluster_for(job, wishes, known, pool=pool)
    gpus = this_machine().machines[0].gpus

    def here(slot: Slot) -> Slot:
        device = f"cuda:{slot.rank % gpus}" if gpus else "cpu"
        return msgspec.structs.replace(slot, device=device, cpus=[], threads=1)

    machines = [
        msgspec.structs.replace(m, slots=[here(slot) for slot in m.slots])
        for m in job.plan.machines
    ]
    settings = msgspec.structs.replace(
        job.settings,
        virtual=cluster,
        rate=None,
        slow=speeds_for(wishes, job.plan.workers),
    )
    plan = msgspec.structs.replace(job.plan, machines=machines)
    fleet = Fleet(workers=job.fleet.workers)
    return replace(job, settings=settings, plan=plan, launcher="inprocess", fleet=fleet)
