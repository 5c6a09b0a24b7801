"""``phalanx simulate``: train on a cluster that is not there, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

NOT_HERE = (
    "launcher", "repeat", "loss", "slow", "rate", "keep", "detach", "ship_limit", "follow_links",
    "dry_run", "slurm", "ray_address", "master", "servers",
)  # fmt: skip
Speeds = typer.Option(metavar="F,F,…", help="Speeds of the workers, such as 1,1,0.25.")
Rate = typer.Option(metavar="RATE", help="Rate of each link, such as 1gbit.")
Latency = typer.Option(metavar="TIME", help="Latency of a message, such as 0.1ms.")
Jitter = typer.Option(metavar="SHARE", help="Standard deviation of a step's time, such as 0.1.")
Straggler = typer.Option(metavar="RANK:FACTOR", help="This worker takes FACTOR times as long.")
Fail = typer.Option(metavar="RANK@STEP", help="This worker is lost at its step STEP.")
StepSeconds = typer.Option(
    metavar="TIME[+TIME]", help="Time of a step, plus time per sample, such as 10ms+0.2ms."
)
TimeOnly = typer.Option("--time-only", help="Compute no gradients; up to 10000 workers.")
Steps = typer.Option(metavar="N", help="With --time-only: steps of each worker.")
Gradient = typer.Option(
    metavar="SIZE", help="With --time-only: bytes of a gradient, such as 3.4MB."
)


@o.expanded(*NOT_HERE, checkpoint_every="0")
def simulate(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    strategy: o.Strategy = "allreduce",
    speeds: Annotated[str | None, Speeds] = None,
    rate: Annotated[str | None, Rate] = None,
    latency: Annotated[str | None, Latency] = None,
    jitter: Annotated[float | None, Jitter] = None,
    straggler: Annotated[list[str] | None, Straggler] = None,
    fail: Annotated[list[str] | None, Fail] = None,
    step_seconds: Annotated[str | None, StepSeconds] = None,
    time_only: Annotated[bool, TimeOnly] = False,
    steps: Annotated[int | None, Steps] = None,
    gradient: Annotated[str | None, Gradient] = None,
    *,
    options: o.RunOptions,
) -> int:
    """Train SCRIPT on a cluster that is not there: virtual time, real gradients.

    Workers are threads of this process. Their steps take as long as the script's profile says
    (phalanx plan makes one), or --step-seconds; links and servers take their time too. Accuracies
    are real, all times are virtual.
    """
    from phalanx.cli.planning.virtual_cluster import ClusterWishes, VirtualMachines
    from phalanx.cli.request.request import check
    from phalanx.cli.request.values import check_at_least, refuse_two_batches
    from phalanx.cli.verbs.run import execute_and_tell
    from phalanx.core.spec import parse_spec

    spec = parse_spec(strategy)
    wishes = ClusterWishes(speeds, rate, latency, jitter, straggler or (), fail or (), step_seconds)
    check_at_least("--batch", options.batch, 1)
    refuse_two_batches(options.batch, options.batch_per_worker)
    out = Output(options.json)
    for option, given in (("--steps", steps), ("--gradient", gradient)):
        if given is not None and not time_only:
            raise InputError(f"{option} needs --time-only", f"Add it, or leave out {option}.")
    if time_only:
        from phalanx.cli.planning.time_only import show_time

        check_at_least("--steps", steps, 1)
        here = replace(options, workers=1, batch_per_worker=None)
        cluster = VirtualMachines(check(here, script, ctx.obj, module=module), wishes)
        return show_time(cluster, spec, options, steps, gradient, out)
    request = check(options, script, ctx.obj, module=module)
    for warning in request.warnings:
        out.note(f"warning: {warning}")
    job = VirtualMachines(request, wishes, out).simulated(request.job(spec.text, options.batch))
    return execute_and_tell(f"{request.name}-{spec.text}-simulated", job, out)
