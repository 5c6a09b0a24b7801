"""``phalanx attach``: be with a detached run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.launch.launcher import Job


def attach(
    run: o.RunName = None,
    pool: Annotated[Path | None, typer.Option(metavar="FILE", help=o.OTHER_POOL)] = None,
    json: o.Json = False,
) -> int:
    """Follow a run that has no controller, and fetch its results when it ends.

    Started with --detach, or by a computer that was asleep or disconnected for too long.

    What happened meanwhile is shown first. Ctrl-C stops the run.
    """
    from phalanx.cli.request.find_run import detached
    from phalanx.cli.show.progress import observe
    from phalanx.cli.verbs.run import tell_outcome
    from phalanx.launch.launchers.attached import take_over
    from phalanx.observe.summary.run_status import controller_alive

    paths = detached(run)
    if controller_alive(paths):
        raise InputError(
            f"'{paths.id}' already has a controller", f"Follow it: phalanx logs {paths.id} --follow"
        )
    job = job_of(paths, pool)
    out = Output(json)
    with observe(out, paths.id, worth=True) as observer:
        outcome = take_over(job, paths, observer)
    return tell_outcome(outcome, paths, out)


def job_of(paths: RunPaths, pool: Path | None) -> Job:
    """As it was started, with the machines as the blueprint has them now."""
    if not paths.detached.exists() and paths.summary.exists():
        raise InputError(f"'{paths.id}' has ended", f"See: phalanx report {paths.id}")
    job = past_job(paths, pool)
    if not paths.detached.exists() and job.launcher != "ssh":
        raise InputError(f"'{paths.id}' is not a detached run", "List runs: phalanx runs")
    return job


def past_job(paths: RunPaths, pool: Path | None) -> Job:
    """The job of a run that was started on machines of a blueprint."""
    from phalanx.core.run_folder.trust import refuse_foreign
    from phalanx.launch.launcher import Fleet, Job, read_launch
    from phalanx.pool.blueprint import read_blueprint

    launch, plan = read_launch(paths)
    if pool is None:
        would = f"contact the machines of {launch.pool or 'a blueprint'}"
        refuse_foreign(paths, would, "Give your own blueprint of these machines: --pool FILE")
    file = pool or (Path(launch.pool) if launch.pool else None)
    if file is None:
        raise InputError(f"'{paths.id}' has no record of its blueprint", "Give --pool FILE.")
    known = {machine.name: machine for machine in read_blueprint(file).machines}
    names = [machine.name for machine in plan.machines]
    missing = [name for name in names if name not in known]
    if missing:
        raise InputError(
            f"{file} has no {', '.join(missing)}, on which '{paths.id}' ran", "Give --pool FILE."
        )
    return Job(
        script=Path(launch.script),
        arguments=launch.arguments,
        settings=launch.settings,
        plan=plan,
        launcher=launch.launcher,
        command=launch.command,
        fleet=Fleet(machines=tuple(known[name] for name in names), pool=file),
        framework=launch.framework,
    )
