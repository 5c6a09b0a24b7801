"""``run --machines auto --strategy auto``: make the job that the planner chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.cli.output import Output
    from phalanx.cli.request.options import RunOptions
    from phalanx.cli.request.request import Request
    from phalanx.launch.frameworks.framework import Framework
    from phalanx.launch.launcher import Job
    from phalanx.plan.choice.decide import Choice
    from phalanx.plan.choice.objectives import Objectives

AUTO = "auto"


def is_auto(strategy: str, options: RunOptions) -> bool:
    """Whether the planner chooses; refuse options that do not work with it."""
    if strategy != AUTO and options.machines != AUTO:
        return False
    if strategy != AUTO:
        raise InputError(
            "--machines auto needs --strategy auto",
            "Give both, or name the machines: --machines all",
        )
    for given, option in (
        (options.dry_run, "--dry-run"),
        (options.slow, "--slow"),
        (options.rate, "--rate"),
    ):
        if given:
            raise InputError(
                f"--strategy auto cannot be used with {option}: it measures the script first",
                "See what would be chosen with: phalanx plan SCRIPT",
            )
    return True


def follow_plan(
    options: RunOptions,
    checked: Callable[[RunOptions], Request],
    framework: Framework | None,
    out: Output,
) -> tuple[Job, str]:
    """Return the job that the planner chose, and its title."""
    import msgspec

    from phalanx.cli.request.systems import framework_job
    from phalanx.plan.choice.objectives import Objectives

    request = checked(replace(options, machines="all") if options.machines == AUTO else options)
    if framework is None:
        choice, predicted = make_choice(request, Objectives(), out)
    else:
        from phalanx.cli.planning.measured_choice import choose_by_runs

        choice = choose_by_runs(request, framework, checked, out)
        predicted = _kept(choice)
    narrowed = checked(replace(options, machines=",".join(choice.chosen.machines)))
    if framework is None:
        job = narrowed.job(choice.chosen.strategy, options.batch)
    else:
        job = framework_job(narrowed, framework, narrowed.script, options.batch)
    reasons = [*job.plan.reasons, *choice.reasons]
    plan = msgspec.structs.replace(job.plan, predicted=predicted, reasons=reasons, selection=AUTO)
    return replace(job, plan=plan), f"{request.name}-{choice.chosen.strategy}"


def make_choice(
    request: Request, goal: Objectives, out: Output, *, quick: bool = False
) -> tuple[Choice, dict[str, float | None]]:
    """Measure the script, read past runs, and choose and show a plan for the request's machines.
    Return the choice, and the predicted figures that ``plan.json`` and ``summary.json`` keep."""
    from phalanx.cli.planning.plan_words import show_choice
    from phalanx.core.run_folder.run_paths import runs_home
    from phalanx.launch.profile.profile_job import profile_job
    from phalanx.observe.summary.past_runs import losses_of, outcomes_of, past_runs
    from phalanx.plan.choice.decide import choose_plan
    from phalanx.plan.choice.evidence import learn_factors
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
        gap=request.checkpoints.gap,
        factors=learn_factors(outcomes_of(runs)),
    )
    losses = losses_of(runs, request.script, request.words)
    choice = choose_plan(model, request.machines, goal, losses)
    show_choice(choice, goal, out)
    chosen = choice.chosen
    return choice, {**_kept(choice), "factor": model.factor(chosen.machines, chosen.strategy)}


def _kept(choice: Choice) -> dict[str, float | None]:
    chosen = choice.chosen
    return {
        "seconds": chosen.seconds.value,
        "seconds_low": chosen.seconds.low,
        "seconds_high": chosen.seconds.high,
        "samples_per_second": chosen.samples_per_second.value,
    }
