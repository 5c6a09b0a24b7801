"""The cost model: a prediction for a selection of machines and a strategy with its codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import exp, log

from phalanx.core.spec import Phase, Spec, parse_spec
from phalanx.plan.cost.energy import joules_of, price_of
from phalanx.plan.cost.free import free_cost
from phalanx.plan.cost.lockstep import alone_cost, lockstep_cost
from phalanx.plan.cost.network import Network
from phalanx.plan.cost.selected_workers import SelectedWorkers, form_team
from phalanx.plan.cost.step_cost import StepCost, combined
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
START_ERROR = 0.3
OTHER_ERROR = 0.3


class CostModel:
    """Of one job, on machines of one pool. ``factors``: learnt, by (machine, strategy)."""

    def __init__(
        self,
        job: JobProfile,
        probe: Probe | None,
        *,
        workers: int | None = None,
        checkpoints: int | None = None,
        factors: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self.job, self.probe, self.network = job, probe, Network(probe)
        self._workers, self._factors = workers, factors or {}
        self._teams: dict[tuple[tuple[str, ...], int | None], SelectedWorkers] = {}
        self._checkpoints = job.epochs if checkpoints is None else checkpoints

    def predict(
        self, machines: Sequence[Machine], strategy: str, *, exact: bool = True
    ) -> Prediction:
        """``exact``: with the event engine where a closed form would not do."""
        spec = _parsed(strategy)
        if spec.phases[0].name == "single":
            machines = [self.best_alone(machines)]
            team = self._team(machines, 1)
        else:
            team = self._team(machines, self._workers)
        working = {member.machine for member in team.members}
        used = [machine for machine in machines if machine.name in working]
        phases = [(self._phase(team, p, exact), part) for p, part in self._parts(spec)]
        return self._assembled(spec, team, used, phases)

    def best_alone(self, machines: Sequence[Machine]) -> Machine:
        """The machine that is quickest with a whole batch."""
        costs = self.job.costs

        def seconds(machine: Machine) -> float:
            found = costs[machine.name]
            return found.work.seconds(self.job.batch) + found.input * self.job.batch + found.update

        self._team(machines, None)  # says so where one was not measured
        return min(machines, key=seconds)

    def workers_on(self, machines: Sequence[Machine]) -> int:
        """How many a strategy of several has there."""
        return natural_workers(machines) if self._workers is None else self._workers

    def computing_floor(self, machines: Sequence[Machine]) -> float:
        """Seconds that no strategy of the same mathematics is below, on all of ``machines``."""
        factor = min(self.factor(machines, name) for name in SAME_MATHEMATICS)
        start = self._start(self._team(machines, self._workers))
        return max(self.computing_by_machine(machines).values()) * factor + start

    def computing_by_machine(self, machines: Sequence[Machine]) -> dict[str, float]:
        """Seconds of a run's forward and backward passes, balanced: those of its busiest worker."""
        team = self._team(machines, self._workers)
        found = dict.fromkeys((machine.name for machine in machines), 0.0)
        for member, samples in zip(team.members, team.samples, strict=True):
            work = self.job.steps * member.seconds(samples)
            found[member.machine] = max(found[member.machine], work)
        return found

    def _team(self, machines: Sequence[Machine], workers: int | None) -> SelectedWorkers:
        key = (tuple(machine.name for machine in machines), workers)
        if key not in self._teams:
            self._teams[key] = form_team(self.job, machines, workers)
        return self._teams[key]

    def _phase(self, team: SelectedWorkers, phase: Phase, exact: bool) -> StepCost:
        if phase.name == "single" or len(team.members) == 1:
            return alone_cost(self.job, team)
        if phase.traits.lockstep:
            return lockstep_cost(self.job, team, self.network, phase)
        seconds = None
        if exact:
            from phalanx.plan.cost.engine import seconds_by_events  # imports NumPy

            seconds = seconds_by_events(self.job, team, self.network, phase)
        return free_cost(self.job, team, self.network, phase, seconds)

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

    def factor(self, machines: Sequence[Machine], strategy: str) -> float:
        """The geometric mean of what was learnt of each machine."""
        if not self._factors:
            return 1.0
        name = _parsed(strategy).phases[0].name
        logs = [log(self._factors.get((m.name, name), 1.0)) for m in machines]
        return exp(sum(logs) / len(logs))

    def _assembled(
        self,
        spec: Spec,
        team: SelectedWorkers,
        machines: Sequence[Machine],
        phases: Sequence[tuple[StepCost, float]],
    ) -> Prediction:
        job, longest = self.job, max(phases, key=lambda each: each[0].seconds * each[1])[0]
        factor = self.factor(machines, spec.phases[0].name)
        step = factor * sum(cost.seconds * part for cost, part in phases)
        error = combined([(cost.seconds * part, cost.error) for cost, part in phases])
        training = step * job.steps
        start, evaluating, saving = self._besides(team, spec)
        total = training + start + evaluating + saving
        total_error = combined(
            [(training, error), (start, START_ERROR), (evaluating + saving, OTHER_ERROR)]
        )
        whole = Interval.around(total, total_error)
        busy = dict.fromkeys((m.name for m in machines), start + evaluating)
        for cost, part in phases:
            for name in busy:
                ranks = [r for r, m in enumerate(team.members) if m.machine == name]
                busy[name] += job.steps * part * max(cost.busy[r] for r in ranks)
        joules, source = joules_of(machines, busy, total_error, self.probe)
        return Prediction(
            machines=[m.name for m in machines],
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
            limit=_limit(longest, job.steps, start, evaluating + saving),
            same_mathematics=is_same_mathematics(spec),
        )

    def _start(self, team: SelectedWorkers) -> float:
        own = max(member.costs.start for member in team.members)
        return own + (REMOTE_START if len(team.hosts) > 1 else 0.0)

    def _besides(self, team: SelectedWorkers, spec: Spec) -> tuple[float, float, float]:
        """Start-up, evaluations and checkpoints of the whole run."""
        job, members = self.job, team.members
        start = self._start(team)
        lockstep = spec.phases[-1].traits.lockstep
        each = max if lockstep else min  # apart, the first to arrive does it and the others go on
        evaluation = each(m.costs.evaluate for m in members) / len(members)
        return start, job.epochs * evaluation, self._checkpoints * job.state_bytes / DISK_SPEED


def is_same_mathematics(spec: Spec) -> bool:
    """Whether it computes what one process would."""
    plain = all(p.name in SAME_MATHEMATICS and p.codec is None for p in spec.phases)
    return plain and not spec.on_straggler


def predict(
    job: JobProfile, machines: Sequence[Machine], probe: Probe | None, strategy: str
) -> Prediction:
    """What training ``job`` on all of ``machines`` comes to."""
    return CostModel(job, probe).predict(machines, strategy)


def _limit(cost: StepCost, steps: int, start: float, besides: float) -> str:
    parts = {
        f"computing on {cost.slowest}": cost.computing * steps,
        cost.link or "nothing": cost.exchange * steps,
        "starting": start,
        "evaluation and checkpoints": besides,
    }
    return max(parts, key=parts.__getitem__)


@lru_cache(maxsize=512)
def _parsed(strategy: str) -> Spec:
    return parse_spec(strategy)
