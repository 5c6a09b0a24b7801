"""``phalanx plan``: choose machines and a strategy, or advise against several machines."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.cli.request.request import Request
    from phalanx.plan.choice.decide import Choice

_OBJECTIVES = ("objective", "deadline", "budget", "max_accuracy_loss", "quick", "machines", "json")
NOT_HERE = ("repeat", "slow", "rate", "detach", "name", "dry_run", "launcher", "profile")
Objective = typer.Option(metavar="WHAT", help="What to minimise: time, energy or cost.")
Deadline = typer.Option(metavar="TIME", help="Longest run, such as 90s, 30min or 2h.")
Budget = typer.Option(metavar="N", help="Highest price, in the unit of price_per_hour.")
MaxAccuracyLoss = typer.Option(
    metavar="POINTS", help="Accepted loss of accuracy, in percentage points, measured by past runs."
)
Quick = typer.Option("--quick", help="Measure only here; scale to other machines by pool probe.")


@o.expanded(*NOT_HERE, checkpoint_every="auto")
def plan(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    framework: o.FrameworkName = None,
    objective: Annotated[str, Objective] = "time",
    deadline: Annotated[str | None, Deadline] = None,
    budget: Annotated[float | None, Budget] = None,
    max_accuracy_loss: Annotated[float, MaxAccuracyLoss] = 0.0,
    quick: Annotated[bool, Quick] = False,
    *,
    options: o.RunOptions,
) -> int:
    """Choose machines and strategy for SCRIPT, with the expected time.

    Trains a few steps on each kind of machine (kept for the next time), predicts all selections
    and strategies, and ranks them. Only plans that compute the same as one process are chosen;
    faster plans that change the result are listed separately.
    """
    import msgspec

    from phalanx.cli.planning.follow_plan import make_choice
    from phalanx.cli.request.request import check
    from phalanx.cli.request.systems import read_framework
    from phalanx.cli.request.values import check_at_least, read_duration
    from phalanx.plan.choice.objectives import Objectives

    if budget is not None and not 0 < budget < float("inf"):
        raise InputError(f"--budget must be above 0, not {budget:g}", "For example: --budget 2.50")
    if not 0 <= max_accuracy_loss <= 100:
        cause = f"--max-accuracy-loss must be from 0 to 100, not {max_accuracy_loss:g}"
        raise InputError(cause, "For example: --max-accuracy-loss 0.3")
    goal = Objectives(
        objective, read_duration("--deadline", deadline), budget, max_accuracy_loss / 100
    )
    check_at_least("--batch", options.batch, 1)
    foreign = read_framework(ctx, framework, script)

    def checked(chosen: o.RunOptions) -> Request:
        return check(chosen, script, ctx.obj, module=module, joins=not foreign, keras=framework)

    request, out = checked(options), Output(options.json)
    if foreign is None:
        choice, _ = make_choice(request, goal, out, quick=quick)
    else:
        from phalanx.cli.planning.measured_choice import choose_by_runs

        if quick or goal != Objectives():
            raise InputError(
                "only the time of another framework's script can be measured",
                "Leave out --quick, --objective, --deadline, --budget and --max-accuracy-loss.",
            )
        choice = choose_by_runs(request, foreign, checked, out)
    again = foreign is None and goal == Objectives() and not quick
    out.say(f"follow it: {_command(ctx, options, None if again else choice, not foreign)}", "dim")
    out.result(msgspec.to_builtins(choice))
    return 0


def _command(ctx: typer.Context, options: o.RunOptions, choice: Choice | None, ours: bool) -> str:
    """Return a ``run`` command with the options given here except objectives, and ``choice``.
    Without one, ``run`` plans again from the figures measured now, and keeps its prediction."""
    words = ["phalanx", "run", str(ctx.params["script"])]
    for option in (
        each for each in ctx.command.params if each.name not in (*_OBJECTIVES, "script")
    ):
        source, value = ctx.get_parameter_source(option.name or ""), ctx.params[option.name or ""]
        if source is not None and source.name == "COMMANDLINE":
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    if choice is None:
        selection = options.machines if options.machines != "all" else "auto"
        words += ["--machines", selection, "--strategy", "auto"]
    else:
        words += ["--machines", ",".join(choice.chosen.machines)] if options.pool else []
        words += ["--strategy", choice.chosen.strategy] if ours else []
    return shlex.join([*words, *(["--", *ctx.obj.words] if ctx.obj.words else [])])
