"""A simulated cluster from options: step times from the profile, links from the probe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from phalanx.cli.output import Output
from phalanx.cli.request.request import Request, speeds_of
from phalanx.cli.request.values import read_duration, read_rate, read_slow
from phalanx.core.errors import InputError
from phalanx.core.settings import VirtualCluster, VirtualWorker
from phalanx.core.spec import parse_spec
from phalanx.launch.launcher import Fleet, Job
from phalanx.launch.profile.kept_profiles import Kinds, job_key, read_kept
from phalanx.launch.profile.profile_job import plain_settings
from phalanx.plan.cost.network import Network
from phalanx.plan.job import JobProfile
from phalanx.plan.placement import natural_workers, share_out
from phalanx.plan.servers import Host, place_servers
from phalanx.policies.collective_choice import USUAL_LATENCY
from phalanx.pool.here import this_machine
from phalanx.pool.measured import Probe, read_probe

UNKNOWN_STEP = 0.0, 1e-3
"""The seconds of a step, and of each sample, if no option or profile gives them."""


@dataclass(frozen=True)
class ClusterOptions:
    """Options as typed; a missing one is taken from the profile or the probe, if these have it."""

    speeds: str | None = None
    rate: str | None = None
    latency: str | None = None
    fail: Sequence[str] = ()
    step_seconds: str | None = None

    def step(self) -> tuple[float, float] | None:
        """Read ``10ms+0.2ms`` as the seconds of a step, and those of each sample."""
        option, example = "--step-seconds", "10ms+0.2ms"
        if self.step_seconds is None:
            return None
        parts = self.step_seconds.partition("~")[0].split("+", 1)
        found = [read_duration(option, part, example, zero=True) or 0.0 for part in parts]
        if not any(found):
            raise InputError(f"{option} must be above 0", f"For example: {option} {example}")
        return found[0], sum(found[1:])

    def variation(self) -> float | None:
        """Read the 0.1 of ``10ms~0.1``: the standard deviation of a step's time, relative to it."""
        text = (self.step_seconds or "").partition("~")[2]
        try:
            found = float(text) if text else None
        except ValueError:
            found = -1.0
        if found is not None and not 0 <= found <= 10:
            raise InputError(
                f"--step-seconds {self.step_seconds}: the variation must be a share from 0 to 10",
                "For example: --step-seconds 10ms+0.2ms~0.1",
            )
        return found

    def speeds_of(self, workers: int) -> list[float] | None:
        given = read_slow(self.speeds, "--speeds")
        if len(given) > workers:
            raise InputError(
                f"--speeds has {len(given)} speeds for {workers} workers",
                f"Give at most {workers}, or --workers {len(given)}.",
            )
        return speeds_of(given, workers)

    def failures(self, workers: int) -> dict[int, int]:
        found = {}
        for text in self.fail:
            try:
                rank, step = (int(part) for part in text.split("@"))
            except ValueError:
                cause = f"--fail {text} is not RANK@STEP"
                raise InputError(cause, "For example: --fail 3@4") from None
            if not 0 <= rank < workers:
                raise InputError(
                    f"--fail {text}: there is no worker {rank}",
                    f"Workers are numbered from 0 to {workers - 1}.",
                )
            if step < 1:
                raise InputError(f"--fail {text}: steps are counted from 1", "Try --fail 2@100.")
            found[rank] = step
        return found


class VirtualMachines:
    """A job and its machines as saved files describe them: nothing is measured.

    A note on ``out`` says if the script was never measured.
    """

    def __init__(self, request: Request, asked: ClusterOptions, out: Output | None = None) -> None:
        self.request, self.asked, self._pool = request, asked, request.options.pool
        self._probe: Probe | None = read_probe(self._pool) if self._pool else None
        self._network = Network(self._probe)
        if out is not None and self.profile is None and asked.step_seconds is None:
            out.note(
                "note: this script was not measured, so a sample takes 1 ms; measure it with "
                "phalanx plan, or give --step-seconds"
            )

    @cached_property
    def profile(self) -> JobProfile | None:
        request, kinds = self.request, Kinds(self._probe)
        asked = plain_settings(request.job("single", request.options.batch).settings)
        # The number of epochs and the batch size make no difference to the step times.
        plain = msgspec.structs.replace(asked, epochs=None, batch=None)
        keys = [job_key(request.script, request.words, chosen) for chosen in (asked, plain)]
        found = {
            m.name: kept
            for m in request.machines
            for key in reversed(keys)
            if (kept := read_kept(key, kinds.name(m)))
        }
        costs = {name: next(iter(kept.costs.values())) for name, kept in found.items()}
        return next((msgspec.structs.replace(p, costs=costs) for p in found.values()), None)

    def seats(self, asked: int | None) -> list[str]:
        """Return the machine of each worker; any number is possible, as no worker is started."""
        machines = self.request.machines
        shares = share_out(machines, natural_workers(machines) if asked is None else asked)
        return [m.name for m, share in zip(machines, shares, strict=True) for _ in range(share)]

    def cluster(self, names: Sequence[str], strategy: str) -> VirtualCluster:
        """Return a cluster with a worker for each name; without a pool, no two share a machine."""
        asked, rate = self.asked, read_rate(self.asked.rate)
        linked = self._pool is not None or rate is not None
        latency = read_duration("--latency", asked.latency, "0.1ms", zero=True)
        variation = asked.variation()
        if latency is None:
            known = self._network.link(names)[0] if self._probe else None
            # The simulated exchanges add the usual time of handling a message themselves.
            latency = (known.latency if known else USUAL_LATENCY) if linked else 0.0
        if variation is None:
            costs = self.profile.costs.items() if self.profile else ()
            variation = max((c.work.variation for name, c in costs if name in names), default=0.0)
        workers = self._workers(names, rate and rate / 8, linked)
        return VirtualCluster(
            workers=workers,
            variation=variation,
            latency=latency,
            failures=asked.failures(len(names)),
            servers=_servers(strategy, VirtualCluster(workers=workers)),
        )

    def _workers(
        self, names: Sequence[str], rate: float | None, linked: bool
    ) -> list[VirtualWorker]:
        counts, step = Counter(names), self.asked.step()
        natural = {m.name: natural_workers([m]) for m in self.request.machines}
        found = {}
        for home, (name, count) in enumerate(counts.items()):
            costs = self.profile.costs.get(name) if self.profile else None
            fixed, each = step or UNKNOWN_STEP
            if costs is not None and step is None:
                crowd = max(1.0, count / natural[name]) if self._pool else 1.0
                fixed = costs.work.fixed * crowd
                each = (costs.work.each + costs.input) * crowd
            found[name] = VirtualWorker(
                fixed=fixed,
                each=each,
                update=costs.update if costs else 0.0,
                evaluate=costs.evaluate if costs else 0.0,
                bandwidth=(rate or self._network.rate(name)) if linked else None,
                home=home if self._pool else None,
            )
        return [found[name] for name in names]

    def simulated(self, job: Job) -> Job:
        """Return the same job, to run in virtual time in this process."""
        if self.request.adopt:
            raise InputError(
                "a simulation needs a script that calls Phalanx",
                "Time it without gradients: --time-only; or let the script join: "
                "run = phalanx.join(model, optimizer).",
            )
        change, gpus = msgspec.structs.replace, this_machine().machines[0].gpus
        names = [machine.name for machine, _ in job.plan.seats]
        machines = []
        for machine in job.plan.machines:
            devices = [f"cuda:{slot.rank % gpus}" if gpus else "cpu" for slot in machine.slots]
            pairs = zip(machine.slots, devices, strict=True)
            slots = [change(slot, device=d, cpus=[], threads=1) for slot, d in pairs]
            machines.append(change(machine, slots=slots))
        settings = change(
            job.settings,
            virtual=self.cluster(names, job.plan.strategy),
            rate=None,
            slow=self.asked.speeds_of(job.plan.workers),
        )
        return replace(
            job,
            settings=settings,
            plan=change(job.plan, machines=machines),
            launcher="inprocess",
            fleet=Fleet(workers=job.fleet.workers),
        )


def _servers(strategy: str, cluster: VirtualCluster) -> tuple[int, ...]:
    """Choose servers as between machines: ``servers=N``, or one for two, on the best links."""
    firsts = {cluster.home(rank): rank for rank in reversed(range(len(cluster.workers)))}
    ranks = sorted(firsts.values())
    asked = [p.options["servers"] for p in parse_spec(strategy).phases if "servers" in p.options]
    hosts = [Host(str(r), 8 * (cluster.workers[r].bandwidth or 0.0), 1) for r in ranks]
    return tuple(int(name) for name in place_servers(hosts, int(asked[0]) if asked else None))
