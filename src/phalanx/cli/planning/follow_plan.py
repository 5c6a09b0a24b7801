"""``run --machines auto --strategy auto``: what the planner chooses is what is run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.cli.output import Output
    from phalanx.cli.request.options import RunOptions
    from phalanx.cli.request.request import Request
    from phalanx.launch.launchers.launcher import Job

AUTO = "auto"


def is_auto(strategy: str, options: RunOptions) -> bool:
    """Whether the planner is asked; refuses what it cannot be asked for."""
    if strategy != AUTO and options.machines != AUTO:
        return False
    if strategy != AUTO:
        raise InputError(
            "--machines auto goes with --strategy auto",
            "Give both, or name the machines: --machines all",
        )
    for given, option in (
        (options.dry_run, "--dry-run, which starts nothing"),
        (options.slow, "--slow"),
        (options.rate, "--rate"),
        (options.batch_per_worker, "--batch-per-worker"),
    ):
        if given:
            raise InputError(
                f"--strategy auto measures the script first, and does not go with {option}",
                "See what would be chosen with: phalanx plan SCRIPT",
            )
    return True


def follow_plan(
    options: RunOptions, checked: Callable[[RunOptions], Request], out: Output
) -> tuple[Job, str]:
    """The job that was chosen, and its title."""
    import msgspec

    from phalanx.cli.planning.make_choice import make_choice
    from phalanx.plan.choice.wishes import Wishes

    request = checked(replace(options, machines="all") if options.machines == AUTO else options)
    choice, predicted = make_choice(request, Wishes(), out)
    narrowed = checked(replace(options, machines=",".join(choice.chosen.machines)))
    job = narrowed.job(choice.chosen.strategy, options.batch)
    reasons = [*job.plan.reasons, *choice.reasons]
    plan = msgspec.structs.replace(job.plan, predicted=predicted, reasons=reasons, selection=AUTO)
    return replace(job, plan=plan), f"{request.name}-{choice.chosen.strategy}"
