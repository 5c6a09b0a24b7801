"""``phalanx compare``: one script, several strategies, one report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.cli.request.request import Request
    from phalanx.cli.request.study import StudyCell
    from phalanx.cli.request.systems import Wanted
    from phalanx.core.spec import Spec
    from phalanx.launch.launcher import Job

DEFAULT = "allreduce,async,switch:at=0.5"
MOST_REPEATS = 1000


@o.expanded("detach", "checkpoint_every")
def compare(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    strategies: o.Strategies = DEFAULT,
    systems: o.Systems = None,
    single: Annotated[
        bool, typer.Option(help="Also train with one process, as the baseline.")
    ] = True,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Train in virtual time, on a simulated cluster.")
    ] = False,
    *,
    options: o.RunOptions,
    batch: o.Batches = None,
) -> int:
    """Train SCRIPT with every strategy; say which was best.

    Strategies, batch sizes and repeats are combined; each combination is a run. The table, the
    verdict and report.html cover all of them. A run that fails is marked; the others go on.
    With --watch they are shown in a browser, as 'phalanx watch' does.
    """
    from phalanx.cli.request.request import check
    from phalanx.cli.request.systems import read_systems
    from phalanx.cli.request.values import check_at_least, check_at_most, read_batches
    from phalanx.cli.watch.watch import watched
    from phalanx.core.spec import parse_specs

    wanted = read_systems(ctx, systems, strategies, script)
    options = with_workers_of(wanted, options)
    specs = rows(parse_specs(strategies), single)
    check_at_least("--repeat", options.repeat, 1)
    check_at_most("--repeat", options.repeat, MOST_REPEATS)
    batches = read_batches(batch)
    request = check(options, script, ctx.obj, module=module)
    elsewhere = options.launcher not in ("auto", "inprocess")
    if simulate and (wanted is not None or options.profile or elsewhere):
        given = "--profile" if options.profile else f"--launcher {options.launcher}"
        given = "--systems" if wanted is not None else given
        raise InputError(f"--simulate cannot be used with {given}", "Leave one of the two out.")
    with watched(ctx.obj.watch and not options.dry_run, Output(options.json)):
        if wanted is not None:
            return compare_systems(request, wanted, batches)
        return compare_checked(request, specs, batches, simulate=simulate)


def with_workers_of(wanted: Wanted | None, options: o.RunOptions) -> o.RunOptions:
    """Give all systems as many workers as ``tf-ps:worker=N:ps=M`` says."""
    from phalanx.launch.frameworks.framework import PARAMETER_SERVER

    workers = wanted.roles.get("worker") if wanted else None
    if workers is None or options.workers == workers:
        return options
    if options.workers is not None:
        raise InputError(
            f"--workers {options.workers} does not match the workers of {PARAMETER_SERVER}",
            "Give one of them.",
        )
    return replace(options, workers=workers)


def rows(specs: list[Spec], single: bool) -> list[str]:
    """Return the strategies as rows, ``single`` first; refuse one that is given twice."""
    texts = [spec.text for spec in specs]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice:
        raise InputError(f"--strategies has '{twice}' twice", "To run each again: --repeat N")
    if "single" in texts or single:
        texts = ["single", *(text for text in texts if text != "single")]
    return texts


def compare_checked(
    request: Request, strategies: list[str], batches: list[int | None], *, simulate: bool = False
) -> int:
    """Carry out the comparison once its options are checked; ``demo`` uses it too."""
    from phalanx.cli.request.study import StudyRun, alternating, show_or_execute, start_of
    from phalanx.core.settings import OURS

    out = start_of(request)
    if request.workers == 1 and strategies != ["single"]:
        out.note("note: with one worker there is nothing to synchronise; compare with --workers 2")
    rows = [(strategy, OURS, "") for strategy in strategies]
    cells = alternating(rows, batches, request.options.repeat)
    make_job = _simulated(request, out) if simulate else None
    return show_or_execute(StudyRun(request, cells, out, make_job), out, request.options.dry_run)


def _simulated(request: Request, out: Output) -> Callable[[StudyCell], Job]:
    """Make jobs that run in virtual time, on a cluster described by --slow and --rate."""
    from phalanx.cli.planning.virtual_cluster import ClusterOptions, VirtualMachines

    options = request.options
    several = VirtualMachines(request, ClusterOptions(options.slow, options.rate), out)
    alone = VirtualMachines(request, ClusterOptions(rate=options.rate))

    def make_job(cell: StudyCell) -> Job:
        job = request.job(cell.strategy, cell.batch, repeat=cell.repeat)
        return (alone if job.plan.workers == 1 else several).simulated(job)

    return make_job


def compare_systems(request: Request, wanted: Wanted, batches: list[int | None]) -> int:
    """Run every system with the same model, data, batch, seed, epochs and machines; one report."""
    from phalanx.cli.request.study import StudyRun, alternating, show_or_execute, start_of
    from phalanx.cli.request.systems import framework_job, framework_of, spark_request
    from phalanx.core.settings import KERAS_SYSTEMS, OUR_SYSTEMS, SPARK_ESTIMATOR
    from phalanx.launch.script.script_check import is_adopted

    out = start_of(request)

    def make_job(cell: StudyCell) -> Job:
        mine = spark_request(request, cell.system, wanted.systems)
        script = wanted.scripts.get(cell.system)
        if script is None:
            return mine.job(cell.strategy, cell.batch, repeat=cell.repeat)
        if cell.system in KERAS_SYSTEMS:
            mine = replace(mine, script=script, adopt=is_adopted(script), keras=cell.system)
            return mine.job(cell.strategy, cell.batch, repeat=cell.repeat)
        return framework_job(
            mine, framework_of(cell.system, wanted.roles), script, cell.batch, repeat=cell.repeat
        )

    rows: list[tuple[str, str, str]] = []
    for system in wanted.systems:
        ours = system in OUR_SYSTEMS and system != SPARK_ESTIMATOR
        strategies = wanted.strategies if ours else [system]
        rows += [(s, system, f"{system} {s}" if ours else system) for s in strategies]
    cells = alternating(rows, batches, request.options.repeat)
    return show_or_execute(StudyRun(request, cells, out, make_job), out, request.options.dry_run)
