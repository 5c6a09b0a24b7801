"""From options to a choice: the script is measured, past runs are read, the rules decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.cli.output import Output
    from phalanx.cli.request.request import Request
    from phalanx.plan.choice.decide import Choice
    from phalanx.plan.choice.wishes import Wishes


def make_choice(
    request: Request, wishes: Wishes, out: Output, *, quick: bool = False
) -> tuple[Choice, dict[str, float | None]]:
    """What to do with the machines of ``request``, shown; and what ``plan.json`` and
    ``summary.json`` keep of its prediction."""
    from phalanx.cli.planning.plan_words import show_choice
    from phalanx.core.run_folder.run_paths import runs_home
    from phalanx.launch.profile.profile_job import profile_job
    from phalanx.observe.summary.past_runs import outcomes_of, pairs_of, past_runs
    from phalanx.plan.choice.decide import choose_plan
    from phalanx.plan.choice.evidence import Evidence, learn_factors
    from phalanx.plan.cost.model import CostModel
    from phalanx.pool.measured import read_probe

    for warning in request.warnings:
        out.note(f"warning: {warning}")
    options, every = request.options, request.checkpoints.epochs
    asked = request.job("single", options.batch)
    job = profile_job(
        request.script, request.words, request.pool, request.machines,
        quick=quick, settings=asked.settings, fleet=asked.fleet, say=out.note,
    )  # fmt: skip
    runs = past_runs(runs_home())
    model = CostModel(
        job,
        read_probe(options.pool) if options.pool else None,
        workers=options.workers,
        checkpoints=job.epochs // every if every else 0,
        factors=learn_factors(outcomes_of(runs)),
    )
    evidence = Evidence(tuple(pairs_of(runs, request.script, request.words)))
    choice = choose_plan(model, request.machines, wishes, evidence)
    show_choice(choice, wishes, out)
    chosen = choice.chosen
    return choice, {
        "seconds": chosen.seconds.value,
        "seconds_low": chosen.seconds.low,
        "seconds_high": chosen.seconds.high,
        "samples_per_second": chosen.samples_per_second.value,
        "factor": model.factor(chosen.machines, chosen.strategy),
    }
