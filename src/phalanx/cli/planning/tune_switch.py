"""``phalanx tune-switch``: the earliest switch that costs no accuracy, found by trying."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.planning.simulate import Jitter, Latency, StepSeconds, Straggler
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.plan.switch_search import Rules

MOST_GRID = 1000
MOST_SEEDS = 100
Tolerance = typer.Option(metavar="T", help="Accepted decline; accuracies in percentage points.")
From = typer.Option("--from", metavar="SPEC", help="The strategy to begin with.")
To = typer.Option(metavar="SPEC", help="The strategy to switch to.")
Grid = typer.Option(metavar="N", help="Switch points: multiples of 1/N.")
Metric = typer.Option(metavar="NAME", help="The metric, as logged at each epoch's end.")
Seeds = typer.Option(metavar="N", help="Runs (seeds) per point.")
Confirm = typer.Option(metavar="N", help="Fresh seeds to confirm with.")
Simulate = typer.Option("--simulate", help="Search in virtual time; confirm with real runs.")
Speeds = typer.Option("--slow", "--speeds", metavar="F,F,…", help="Emulate speeds: 1,1,0.25.")


@o.expanded(
    "batch_per_worker", "repeat", "on_nonfinite", "checkpoint_every", "keep", "detach", "servers"
)
def tune_switch(
    ctx: typer.Context,
    script: o.Script,
    tolerance: Annotated[float, Tolerance] = 0.3,
    from_: Annotated[str, From] = "allreduce",
    to: Annotated[str, To] = "async",
    grid: Annotated[int, Grid] = 10,
    metric: Annotated[str, Metric] = "test_accuracy",
    seeds: Annotated[int, Seeds] = 1,
    confirm: Annotated[int, Confirm] = 3,
    simulate: Annotated[bool, Simulate] = False,
    slow: Annotated[str | None, Speeds] = None,
    latency: Annotated[str | None, Latency] = None,
    jitter: Annotated[float | None, Jitter] = None,
    straggler: Annotated[list[str] | None, Straggler] = None,
    step_seconds: Annotated[str | None, StepSeconds] = None,
    *,
    options: o.RunOptions,
) -> int:
    """Find the earliest switch that keeps the accuracy.

    Trains synchronously first, then searches by bisection over fresh runs for the earliest point
    of the grid whose accuracy is within the tolerance, and confirms it with fresh seeds. A run
    that is clearly worse is ended early. All runs form a study, which 'phalanx report' shows.
    With --simulate it searches in virtual time; real runs, with these speeds and rate, confirm.
    """
    from phalanx.cli.planning.virtual_cluster import ClusterWishes, VirtualMachines
    from phalanx.cli.request.request import check
    from phalanx.cli.request.tuning import Tuning
    from phalanx.cli.request.tuning_specs import Specs
    from phalanx.cli.request.values import check_at_least

    rules = _rules(tolerance, grid, seeds, confirm, metric)
    specs = Specs.read(from_, to, grid)
    wishes = ClusterWishes(slow, options.rate, latency, jitter, straggler or (), (), step_seconds)
    if not simulate and wishes != ClusterWishes(slow, options.rate):
        cause = "--latency, --jitter, --straggler and --step-seconds need --simulate"
        raise InputError(cause, "Add --simulate, or leave them out.")
    check_at_least("--batch", options.batch, 1)
    request = check(replace(options, slow=slow), script, ctx.obj)
    out = Output(options.json)
    for warning in request.warnings:
        out.note(f"warning: {warning}")
    virtual = VirtualMachines(request, wishes, out) if simulate else None
    tuning = Tuning(request, rules, specs, metric, out, virtual)
    return tuning.show() if options.dry_run else tuning.execute()


def _rules(tolerance: float, grid: int, seeds: int, confirm: int, metric: str) -> Rules:
    from phalanx.cli.request.values import check_at_least, check_at_most
    from phalanx.core.settings import smaller_is_better
    from phalanx.plan.switch_search import Rules

    if not 0 <= tolerance < float("inf"):
        raise InputError(f"--tolerance must be 0 or more, not {tolerance:g}", "Try --tolerance 0.3")
    for option, value, low, high in (
        ("--grid", grid, 2, MOST_GRID),
        ("--seeds", seeds, 1, MOST_SEEDS),
        ("--confirm", confirm, 0, MOST_SEEDS),
    ):
        check_at_least(option, value, low)
        check_at_most(option, value, high)
    if not metric:
        raise InputError("--metric is empty", "For example: --metric test_accuracy")
    unit = 0.01 if metric.endswith("accuracy") else 1.0
    return Rules(tolerance * unit, grid, seeds, confirm, smaller_is_better(metric))
