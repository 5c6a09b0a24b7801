"""``phalanx run``: train one script with one strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError
from phalanx.core.terminal import wrapped

if TYPE_CHECKING:
    from phalanx.cli.request.request import Request
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.launch.launcher import Job
    from phalanx.launch.run.controller import RunOutcome


@o.expanded("repeat", checkpoint_every="auto")
def run(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    strategy: o.Strategy = "allreduce",
    framework: o.FrameworkName = None,
    explain: o.Explain = False,
    *,
    options: o.RunOptions,
) -> int:
    """Train SCRIPT with one strategy, and show the progress.

    The first worker's output is shown here; that of the others is in the logs. Everything about
    the run is in its folder, runs/ID, whose path the last lines print.

    With --machines auto --strategy auto the run is the one that 'phalanx plan' would choose.

    --watch also shows the run in a browser, as 'phalanx watch' does.
    """
    from phalanx.cli.planning.follow_plan import follow_plan, is_auto
    from phalanx.cli.request.explain_run import refuse_beside_explain
    from phalanx.cli.request.request import check
    from phalanx.cli.request.systems import framework_job, read_framework, ready
    from phalanx.cli.request.values import check_at_least
    from phalanx.core.spec import AUTO_SWITCH, parse_spec

    planned = is_auto(strategy, options)
    if explain and planned:
        raise InputError("--strategy auto cannot be used with --explain", "Name a strategy.")
    spec = parse_spec("allreduce" if planned else strategy)
    if explain:
        refuse_beside_explain(framework, options)
    foreign = read_framework(ctx, framework, script)
    check_at_least("--batch", options.batch, 1)
    out = Output(options.json)

    def checked(chosen: o.RunOptions) -> Request:
        return check(chosen, script, ctx.obj, module=module, joins=not foreign, keras=framework)

    if planned:
        job, title = follow_plan(options, checked, foreign, out)
        return execute_and_tell(title, ready(job, out), out, watch=ctx.obj.watch)
    request = checked(options)
    for warning in request.warnings:
        out.note(f"warning: {warning}")
    if explain:
        return _explain(request, out)
    if foreign is None:
        job, title = request.job(spec.text, options.batch), f"{request.name}-{spec.text}"
    else:
        job = framework_job(request, foreign, request.script, options.batch)
        title = f"{request.name}-{foreign.system}"
    if options.dry_run:
        from phalanx.cli.request.dry_run import show

        return show([(title, job)], out)
    if AUTO_SWITCH in strategy:
        out.note(f"note: {job.plan.reasons[-1]}")
    return execute_and_tell(title, ready(job, out), out, watch=ctx.obj.watch)


def _explain(request: Request, out: Output) -> int:
    import msgspec

    from phalanx.cli.request.explain_run import explain, lines

    found = explain(request, out)
    for line in lines(found, request.script):
        out.say(line)
    out.result({"explain": True, **msgspec.to_builtins(found)})
    return 0


def execute_and_tell(title: str, job: Job, out: Output, *, watch: bool = False) -> int:
    """Run ``job`` to its end and print its outcome; return the exit code."""
    from phalanx.cli.show.progress import observe
    from phalanx.cli.watch.watch import watched
    from phalanx.core.run_folder.run_paths import new_run
    from phalanx.launch.run.controller import execute

    paths = new_run(title)
    with watched(watch, out, paths):
        try:
            with observe(out, paths.id, worth=True) as observer:
                outcome = execute(job, paths, observer)
        finally:
            paths.remove_if_empty()  # nothing was started
        return tell_outcome(outcome, paths, out)


def tell_outcome(outcome: RunOutcome, paths: RunPaths, out: Output) -> int:
    """Print the outcome of a run, for people and for programs; return the exit code."""
    from phalanx.cli.show.result_lines import beside_prediction, describe
    from phalanx.report.findings import findings

    if outcome.error:
        out.problem(outcome.error)
    if outcome.summary.status == "running":
        out.say(f"{paths.id} keeps running", "bold")
        out.say(f"attach  phalanx attach {paths.id}")
        out.result(_result(outcome))
        return outcome.exit_code
    style = "bold green" if outcome.summary.status == "done" else "bold red"
    out.say(describe(outcome.summary), style)
    for sentence in (*beside_prediction(outcome.summary), *findings(outcome.summary)):
        out.say(wrapped(sentence, out.human.file))
    out.say(f"run     {paths.folder}")
    profiled = " --profile" if any(paths.profiles.glob("rank-*.json")) else ""
    out.say(f"report  phalanx report{profiled} {paths.id}")
    if outcome.summary.status != "done" and any(paths.checkpoints.glob("[0-9]*")):
        out.say(f"go on   phalanx resume {paths.id}")
    out.result(_result(outcome))
    return outcome.exit_code


def _result(outcome: RunOutcome) -> dict[str, Any]:
    import msgspec

    result: dict[str, Any] = msgspec.to_builtins(outcome.summary)
    if outcome.error:
        result["error"] = outcome.error.cause
        result["remedy"] = outcome.error.remedy
        result["exit_code"] = outcome.exit_code
    return result
