"""The cost model: a prediction for a selection of machines and a strategy with its codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import exp, log
from statistics import fmean

from phalanx.core.spec import Phase, Spec, parse_spec
from phalanx.plan.cost.energy import joules_of, price_of
from phalanx.plan.cost.free import free_cost
from phalanx.plan.cost.lockstep import lockstep_cost
from phalanx.plan.cost.network import Network
from phalanx.plan.cost.selected_workers import SelectedWorkers, form_team
from phalanx.plan.cost.step_cost import Setup, StepCost, combined
from phalanx.plan.job import JobProfile
from phalanx.plan.placement import natural_workers
from phalanx.plan.prediction import Interval, Prediction
from phalanx.pool.machine import Machine
from phalanx.pool.measured import Probe

SAME_MATHEMATICS = ("single", "allreduce", "bsp")
DISK_SPEED = 200e6
"""Bytes a second of a checkpoint: an ordinary disk."""
REMOTE_START = 3.4
"""Seconds to connect, look and meet when other machines take part (five of them: 8.6 s to the first
step, 5.2 of which are the workers' own start)."""
OTHER_ERROR = 0.3
"""Error of starting, evaluations and checkpoints."""


class CostModel:
    """The costs of one job on machines of one pool. ``factors``: learnt, by (machine, strategy)."""

    def __init__(
        self,
        job: JobProfile,
        probe: Probe | None,
        *,
        workers: int | None = None,
        checkpoints: int | None = None,
        gap: float = 0.0,
        factors: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self.job, self.probe, self.network = job, probe, Network(probe)
        self.asked_workers, self._factors = workers, factors or {}
        self._teams: dict[tuple[tuple[str, ...], int | None], SelectedWorkers] = {}
        self._checkpoints = job.epochs if checkpoints is None else checkpoints
        self._gap = gap
        """Seconds from one checkpoint to the next, at least."""

    def predict(
        self, machines: Sequence[Machine], strategy: str, *, exact: bool = True
    ) -> Prediction:
        """Predict a run; ``exact``: simulate by events what has no closed form."""
        spec, workers = _parsed(strategy), self.asked_workers
        if spec.phases[0].name == "single":
            machines, workers = [min(machines, key=self.seconds_alone)], 1
        team = self._team(machines, workers)
        working = {member.machine for member in team.members}
        used = [machine for machine in machines if machine.name in working]
        phases = [(self._phase(team, p, exact), part) for p, part in self._parts(spec)]
        return self._assembled(spec, team, used, phases)

    def seconds_alone(self, machine: Machine) -> float:
        """Seconds of a step in which one worker of ``machine`` computes the whole batch."""
        (member,) = self._team([machine], 1).members
        return member.seconds(self.job.batch) + member.costs.update

    def workers_on(self, machines: Sequence[Machine]) -> int:
        """How many workers a run has on these machines, unless its strategy is ``single``."""
        return natural_workers(machines) if self.asked_workers is None else self.asked_workers

    def factor(self, machines: Sequence[str], strategy: str) -> float:
        """The geometric mean of the machines' learnt factors for this strategy."""
        name = _parsed(strategy).phases[0].name
        return exp(fmean(log(self._factors.get((m, name), 1.0)) for m in machines))

    def _team(self, machines: Sequence[Machine], workers: int | None) -> SelectedWorkers:
        key = (tuple(machine.name for machine in machines), workers)
        if key not in self._teams:
            self._teams[key] = form_team(self.job, machines, workers)
        return self._teams[key]

    def _phase(self, team: SelectedWorkers, phase: Phase, exact: bool) -> StepCost:
        setup = Setup(self.job, team, self.network, phase)
        if phase.traits.lockstep or len(team.members) == 1:
            return lockstep_cost(setup)
        return free_cost(setup, exact=exact)

    def _parts(self, spec: Spec) -> list[tuple[Phase, float]]:
        """Each phase with its share of the steps."""
        if spec.on_straggler:
            return [(spec.phases[0], 1.0)]
        ends = [0.0]
        for phase in spec.phases[:-1]:
            assert phase.until is not None
            share = phase.until.share
            end = share if share is not None else (phase.until.epochs or 0) / self.job.epochs
            ends.append(min(1.0, max(ends[-1], end)))
        shares = [after - before for before, after in pairwise([*ends, 1.0])]
        return list(zip(spec.phases, shares, strict=True))

    def _besides(
        self, team: SelectedWorkers, spec: Spec, remote: bool, training: float
    ) -> tuple[float, float, float]:
        """Start-up, evaluations and checkpoints of the whole run."""
        costs = [member.costs for member in team.members]
        start = max(c.start for c in costs) + (REMOTE_START if remote else 0.0)
        # If workers train apart, the first to arrive evaluates while the others go on.
        each = max if spec.phases[-1].traits.lockstep else min
        evaluating = self.job.epochs * each(c.evaluate for c in costs) / len(costs)
        saved: float = self._checkpoints
        if self._gap:
            saved = min(saved, 1 + training / self._gap)
        return start, evaluating, saved * self.job.state_bytes / DISK_SPEED

    def _assembled(
        self,
        spec: Spec,
        team: SelectedWorkers,
        machines: Sequence[Machine],
        phases: Sequence[tuple[StepCost, float]],
    ) -> Prediction:
        job, longest = self.job, max(phases, key=lambda each: each[0].seconds * each[1])[0]
        names = [machine.name for machine in machines]
        step = sum(cost.seconds * part for cost, part in phases) * self.factor(names, spec.text)
        error = combined(*((cost.seconds * part, cost.error) for cost, part in phases))
        remote = not all(machine.is_here for machine in machines)
        start, evaluating, saving = self._besides(team, spec, remote, step * job.steps)
        parts = [(step * job.steps, error)]
        parts += [(s, OTHER_ERROR) for s in (start, evaluating + saving)]
        whole = Interval.around(sum(s for s, _ in parts), combined(*parts))
        busy = dict.fromkeys(names, 0.0)
        for rank, member in enumerate(team.members):
            own = job.steps * sum(cost.busy[rank] * part for cost, part in phases)
            busy[member.machine] = max(busy[member.machine], start + evaluating + own)
        joules, source = joules_of(machines, busy, combined(*parts), self.probe)
        limits = {
            f"computing on {longest.slowest}": longest.computing * job.steps,
            longest.link: longest.exchange * job.steps,
            "starting": start,
            "evaluation and checkpoints": evaluating + saving,
        }
        return Prediction(
            machines=names,
            workers=len(team.members),
            strategy=spec.text,
            shares=[n / sum(longest.samples) for n in longest.samples],
            servers=list(longest.servers),
            step=Interval.around(step, error),
            samples_per_second=Interval.around(job.batch / step, error),
            seconds=whole,
            joules=joules,
            energy_source=source,
            price=price_of(machines, whole),
            limit=max(limits, key=limits.__getitem__),
        )


def is_same_mathematics(spec: Spec) -> bool:
    """Whether the strategy computes the same numbers as one process."""
    plain = all(p.name in SAME_MATHEMATICS and p.codec is None for p in spec.phases)
    return plain and not spec.on_straggler


@lru_cache(maxsize=512)
def _parsed(strategy: str) -> Spec:
    return parse_spec(strategy)
