"""``phalanx simulate``: train on a cluster that is not there, in virtual time."""

from __future__ import annotations

import typer

from phalanx.cli.output import Output
from phalanx.cli.planning import simulate_options as so
from phalanx.cli.planning.virtual_values import ClusterWishes
from phalanx.cli.request import options as o

NOT_HERE = (
    "launcher", "repeat", "loss", "slow", "rate", "keep", "detach", "ship_limit", "follow_links",
    "dry_run",
)  # fmt: skip


@o.expanded(*NOT_HERE, checkpoint_every="0")
def simulate(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    strategy: o.Strategy = "allreduce",
    speeds: so.Speeds = None,
    rate: so.LinkRate = None,
    latency: so.Latency = None,
    jitter: so.Jitter = None,
    straggler: so.Straggler = None,
    fail: so.Fail = None,
    step_seconds: so.StepSeconds = None,
    time_only: so.TimeOnly = False,
    steps: so.Steps = None,
    gradient: so.GradientSize = None,
    *,
    options: o.RunOptions,
) -> int:
    """Train SCRIPT on a cluster that is not there: virtual time, real gradients.

    Workers are threads of this process. Their steps take as long as the script's profile says
    (phalanx plan makes one), or --step-seconds; links and servers take their time too. Accuracies
    are real, all times are virtual.
    """
    from phalanx.cli.planning.virtual_cluster import UNKNOWN, simulated, what_is_known
    from phalanx.cli.request.request import check, check_at_least
    from phalanx.cli.request.values import refuse_two_batches
    from phalanx.cli.verbs.run import execute_and_tell
    from phalanx.core.spec import parse_spec

    spec = parse_spec(strategy)
    wishes = ClusterWishes(speeds, rate, latency, jitter, straggler or (), fail or (), step_seconds)
    check_at_least("--batch", options.batch, 1)
    refuse_two_batches(options.batch, options.batch_per_worker)
    out = Output(options.json)
    if time_only:
        from phalanx.cli.planning.time_only import show_time

        return show_time(ctx, script, module, spec, options, wishes, steps, gradient, out)
    request = check(options, script, ctx.obj, module=module)
    for warning in request.warnings:
        out.note(f"warning: {warning}")
    known = what_is_known(request)
    job = simulated(request, request.job(spec.text, options.batch), wishes, known)
    if known.profile is None and step_seconds is None:
        out.note(UNKNOWN)
    return execute_and_tell(f"{request.name}-{spec.text}-simulated", job, out)
