"""``phalanx resume``: continue a run from its newest checkpoint, as a new run."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.cli.request.resumption import ResumeOptions, Resumption
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.launch.launcher import Job
    from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest

MOST_SHOWN = 200  # characters of a command line


@o.expanded()
def resume(ctx: typer.Context, run: o.RunName = None, *, options: ResumeOptions) -> int:
    """Continue a run from its newest checkpoint.

    The rest of the training is a new run. It has the same script, arguments and settings, except
    for the options given here: another strategy or number of workers, for example.
    """
    from phalanx.cli.request.checkpoint_choice import find_checkpoint
    from phalanx.cli.request.find_run import single_run
    from phalanx.cli.request.values import check_at_least
    from phalanx.cli.verbs.run import execute_and_tell
    from phalanx.launch.launcher import read_launch

    check_at_least("--batch", options.batch, 1)
    out = Output(options.json)
    paths = single_run(run, "resume")
    launch, plan = read_launch(paths)
    past = Resumption(paths, launch, plan, options)
    _check_is_own(past, options.pool, options.trust)
    _check_can_go_on(past, options.epochs is not None or options.checkpoint is not None)
    request = past.request(ctx.obj)
    found, manifest = find_checkpoint(past.paths, options.checkpoint, out, fetch=True)
    _check_there_is_more(options.epochs, manifest)
    for warning in (*request.warnings, *changed_sources(past.paths, request.script)):
        out.note(f"warning: {warning}")
    job, title = past.job(request, found, manifest), past.title(manifest)
    out.note(f"continues {job.resumes} ({where(manifest)}), with {job.settings.strategy}")
    if (note := changed_machines(past, job)) is not None:
        out.note(note)
    if options.dry_run:
        from phalanx.cli.request.dry_run import show

        return show([(title, job)], out)
    return execute_and_tell(title, job, out)


def where(manifest: CheckpointManifest) -> str:
    """``after epoch 2`` or ``epoch 3, 41 %``: how far the training was at the checkpoint."""
    if manifest.position >= manifest.samples:
        return f"after epoch {manifest.epoch + 1}"
    return f"epoch {manifest.epoch + 1}, {100 * manifest.position // manifest.samples} %"


def changed_machines(past: Resumption, job: Job) -> str | None:
    """Return a line about the machines used now, if some of the run's machines are not."""
    now = [machine.name for machine in job.plan.machines]
    without = [m.name for m in past.plan.machines if m.name not in now]
    if not without:
        return None
    workers = "1 worker" if job.plan.workers == 1 else f"{job.plan.workers} workers"
    return f"without {', '.join(without)}: {workers} on {', '.join(now)} (was {past.plan.workers})"


def changed_sources(paths: RunPaths, script: Path) -> list[str]:
    """Return a line for each source file that was changed or removed since the run began."""
    folder = script.resolve().parent
    remarks = []
    for kept in sorted(file for file in paths.source.rglob("*.py") if file.is_file()):
        name = kept.relative_to(paths.source)
        now = folder / name
        if not now.is_file():
            remarks.append(f"{name} was removed since the run began (copy: {kept})")
        elif not filecmp.cmp(now, kept, shallow=False):
            remarks.append(f"{name} has changed since the run began (copy: {kept})")
    return remarks


def _check_is_own(past: Resumption, pool: Path | None, trust: bool) -> None:
    """Refuse to start what another user's run folder names, unless the user trusts it."""
    from phalanx.core.run_folder.trust import refuse_foreign

    launch = past.launch
    if not trust:
        words = " ".join([launch.script, *launch.arguments])[:MOST_SHOWN]
        refuse_foreign(past.paths, f"start {words}", "If you want that, add --trust.")
    elif launch.pool and pool is None:
        would = f"contact the machines of {launch.pool}"
        refuse_foreign(past.paths, would, "Give your own blueprint: --pool FILE")


def _check_can_go_on(past: Resumption, there_is_more: bool) -> None:
    from phalanx.cli.request.find_run import summary_of
    from phalanx.observe.summary.run_status import controller_alive

    name = past.paths.id
    if controller_alive(past.paths) or past.paths.detached.exists():
        raise InputError(f"'{name}' is still running", f"Stop it first: phalanx stop {name}")
    # A run whose model was lost, with a machine or a controller, is not finished.
    done = summary_of(past.paths).status == "done" and past.paths.model.exists()
    if done and not there_is_more:
        longer = "Train it longer: --epochs N (total)."
        if past.launch.settings.adopt:
            longer = "It trains as many epochs as its script says: change that, in a new run."
        raise InputError(f"'{name}' has finished", longer)


def _check_there_is_more(epochs: int | None, manifest: CheckpointManifest) -> None:
    if epochs is None or manifest.epoch * manifest.samples + manifest.position < (
        epochs * manifest.samples
    ):
        return
    raise InputError(
        f"--epochs {epochs} leaves nothing to train: checkpoint {manifest.number} is "
        f"{'' if manifest.position >= manifest.samples else 'in '}{where(manifest)}",
        "Give a larger total with --epochs, or an earlier checkpoint with --checkpoint N.",
    )
