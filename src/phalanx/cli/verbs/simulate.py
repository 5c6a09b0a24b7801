"""``phalanx simulate``: train on a simulated cluster, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o

NOT_HERE = (
    "launcher", "repeat", "view", "check", "loss", "slow", "rate", "detach", "dry_run", "profile",
)  # fmt: skip
Speeds = typer.Option(metavar="F,F,…", help="Speeds of the workers, such as 1,1,0.25.")
Rate = typer.Option("--rate", metavar="RATE", help="Rate of each link, such as 1gbit.")
Latency = typer.Option(metavar="TIME", help="Latency of a message, such as 0.1ms.")
Fail = typer.Option(metavar="RANK@STEP", help="This worker is lost at its step STEP.")
StepSeconds = typer.Option(
    metavar="TIME[+TIME]",
    help="Time of a step, plus time per sample, such as 10ms+0.2ms; with its variation: 10ms~0.1.",
)
TimeOnly = typer.Option("--time-only", help="Compute no gradients; up to 10000 workers.")


@o.expanded(*NOT_HERE, checkpoint_every="0")
def simulate(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    strategy: o.Strategy = "allreduce",
    speeds: Annotated[str | None, Speeds] = None,
    rate: Annotated[str | None, Rate] = None,
    latency: Annotated[str | None, Latency] = None,
    fail: Annotated[list[str] | None, Fail] = None,
    step_seconds: Annotated[str | None, StepSeconds] = None,
    time_only: Annotated[bool, TimeOnly] = False,
    *,
    options: o.RunOptions,
) -> int:
    """Train SCRIPT on a simulated cluster: virtual time, real gradients.

    Workers are threads of this process. Their steps take as long as the script's profile says
    (phalanx plan makes one), or --step-seconds; links and servers take their time too. Accuracies
    are real, all times are virtual.
    """
    from phalanx.cli.planning.virtual_cluster import ClusterOptions, VirtualMachines
    from phalanx.cli.request.request import check
    from phalanx.cli.request.values import check_at_least
    from phalanx.cli.verbs.run import execute_and_tell
    from phalanx.core.spec import parse_spec

    spec = parse_spec(strategy)
    asked = ClusterOptions(speeds, rate, latency, fail or (), step_seconds)
    check_at_least("--batch", options.batch, 1)
    out = Output(options.json)
    if time_only:
        from phalanx.cli.planning.time_only import show_time

        here = replace(options, workers=1)
        cluster = VirtualMachines(check(here, script, ctx.obj, module=module), asked)
        return show_time(cluster, spec, options, out)
    request = check(options, script, ctx.obj, module=module)
    for warning in request.warnings:
        out.note(f"warning: {warning}")
    job = VirtualMachines(request, asked, out).simulated(request.job(spec.text, options.batch))
    return execute_and_tell(f"{request.name}-{spec.text}-simulated", job, out)
