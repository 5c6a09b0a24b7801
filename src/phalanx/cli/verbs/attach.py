"""``phalanx attach``: follow a detached run until its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.launch.launcher import Job


def attach(run: o.RunName = None, pool: o.OtherPool = None, json: o.Json = False) -> int:
    """Follow a run that has no controller, and fetch its results when it ends.

    The run was started with --detach, or from a computer that slept or was offline for too long.

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
    """Return the job as it was started, with the machines as the blueprint has them now."""
    from phalanx.cli.request.find_run import past_job

    if not paths.detached.exists() and paths.summary.exists():
        raise InputError(f"'{paths.id}' has ended", f"See: phalanx report {paths.id}")
    job = past_job(paths, pool)
    if not paths.detached.exists() and job.launcher != "ssh":
        raise InputError(f"'{paths.id}' is not a detached run", "List runs: phalanx runs")
    return job
