"""From options to a choice: the script is measured, past runs are read, the rules decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.plan.choice.wishes import Wishes

if TYPE_CHECKING:
    from phalanx.cli.output import Output
    from phalanx.cli.request.request import Request
    from phalanx.plan.choice.decide import Choice
    from phalanx.plan.job import JobProfile
    from phalanx.pool.measured import Probe


@dataclass(frozen=True)
class PlanMade:
    choice: Choice
    job: JobProfile
    factor: float
    """That was learnt from past runs, of what was chosen."""

    @property
    def predicted(self) -> dict[str, float | None]:
        """As ``plan.json`` and ``summary.json`` keep it."""
        chosen = self.choice.chosen
        return {
            "seconds": chosen.seconds.value,
            "seconds_low": chosen.seconds.low,
            "seconds_high": chosen.seconds.high,
            "samples_per_second": chosen.samples_per_second.value,
            "factor": self.factor,
        }


def make_choice(request: Request, wishes: Wishes, out: Output, *, quick: bool = False) -> PlanMade:
    """What to do with the machines of ``request``."""
    from phalanx.core.run_folder.run_paths import runs_home
    from phalanx.launch.profile.profile_job import profile_job
    from phalanx.observe.summary.past_runs import outcomes_of, pairs_of, past_runs
    from phalanx.plan.choice.decide import choose_plan
    from phalanx.plan.choice.evidence import Evidence, learn_factors
    from phalanx.plan.cost.model import CostModel

    options = request.options
    asked = request.job("single", options.batch)
    job = profile_job(
        request.script, request.words, request.pool, request.machines,
        quick=quick, settings=asked.settings, fleet=asked.fleet, say=out.note,
    )  # fmt: skip
    runs = past_runs(runs_home())
    every = request.checkpoints.epochs
    model = CostModel(
        job,
        _probe(request),
        workers=options.workers,
        checkpoints=job.epochs // every if every else 0,
        factors=learn_factors(outcomes_of(runs)),
    )
    evidence = Evidence(tuple(pairs_of(runs, request.script, request.words)))
    choice = choose_plan(model, request.machines, wishes, evidence)
    chosen = choice.chosen
    return PlanMade(choice, job, model.factor(chosen.machines, chosen.strategy))


def _probe(request: Request) -> Probe | None:
    from phalanx.pool.measured import read_probe

    return read_probe(request.options.pool) if request.options.pool else None
