"""``phalanx resume``: go on with a run from its newest checkpoint, in a run of its own."""

from __future__ import annotations

import filecmp
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.request import options as o

if TYPE_CHECKING:
    from phalanx.cli.request.request import Request
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.core.settings import RunSettings
    from phalanx.launch.launchers.launcher import Fleet, Job, Launch
    from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest

SUFFIX = "-resumed"
MOST_SHOWN = 200  # characters of a command line
Number = Annotated[
    int | None, typer.Option(metavar="NUMBER", help="Which one. Default: the newest that is whole.")
]
Same = "Instead of the run's."


def resume(
    ctx: typer.Context,
    run: o.RunName = None,
    strategy: o.NewStrategy = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help=Same)] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="In all, " + Same.lower())] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help=Same)] = None,
    checkpoint: Number = None,
    launcher: Annotated[str | None, typer.Option(metavar="NAME", help=Same)] = None,
    pool: Annotated[Path | None, typer.Option("--pool", metavar="FILE", help=Same)] = None,
    machines: Annotated[str | None, typer.Option(metavar="SELECTION", help=Same)] = None,
    balance: Annotated[str | None, typer.Option(metavar="NAME", help=Same)] = None,
    on_nonfinite: Annotated[str | None, typer.Option(metavar="WHAT", help=Same)] = None,
    slow: Annotated[str | None, typer.Option(metavar="F,F,…", help=Same)] = None,
    rate: Annotated[str | None, typer.Option(metavar="RATE", help=Same)] = None,
    checkpoint_every: Annotated[str | None, typer.Option(metavar="N", help=Same)] = None,
    keep: Annotated[int | None, typer.Option(metavar="N", help=Same)] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Part of its id. Default: the run's.")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Also if the folder was made elsewhere, or by others."),
    ] = False,
    follow_links: o.FollowLinks = False,
    dry_run: o.DryRun = False,
    json: o.Json = False,
) -> int:
    """Go on with a run from its newest checkpoint.

    The rest of the training is a run of its own, with the same script, arguments and settings,
    except those that are given here: another strategy or number of workers, for example.
    """
    from phalanx.cli.output import Output
    from phalanx.cli.request.checkpoint_choice import find_checkpoint
    from phalanx.cli.request.find_run import single_run
    from phalanx.cli.request.request import check_at_least
    from phalanx.cli.request.values import read_rate, read_slow
    from phalanx.cli.verbs.run import execute_and_tell

    check_at_least("--batch", batch, 1)
    out = Output(json)
    past = _read(single_run(run, "resume"))
    _check_is_own(past, pool, trust)
    _check_can_go_on(past, epochs is not None or checkpoint is not None)
    wanted = _given(
        strategy=strategy,
        epochs=epochs,
        batch=batch,
        balance=balance,
        on_nonfinite=on_nonfinite,
        slow=list(read_slow(slow)) or None,
        rate=read_rate(rate),
    ) | _when(checkpoint_every, keep, past.launch.settings)
    resumption = Resumption(past, wanted, workers, launcher, pool, machines, name, follow_links)
    request = resumption.request(ctx.obj.command)
    found, manifest = find_checkpoint(past.paths, checkpoint, out, fetch=True)
    _check_there_is_more(epochs, manifest)
    for warning in (*request.warnings, *changed_sources(past.paths, request.script)):
        out.note(f"warning: {warning}")
    job, title = resumption.job(request, found, manifest), resumption.title(manifest)
    out.note(f"goes on from {job.resumes} ({where(manifest)}), with {job.settings.strategy}")
    if (note := changed_machines(past, job)) is not None:
        out.note(note)
    if dry_run:
        from phalanx.cli.request.dry_run import show

        return show([(title, job)], out)
    return execute_and_tell(title, job, out)


def where(manifest: CheckpointManifest) -> str:
    """``after epoch 2`` or ``epoch 3, 41 %``: how far the training had come."""
    if manifest.position >= manifest.samples:
        return f"after epoch {manifest.epoch + 1}"
    return f"epoch {manifest.epoch + 1}, {100 * manifest.position // manifest.samples} %"


@dataclass(frozen=True)
class Past:
    """What the run was that is gone on with."""

    paths: RunPaths
    launch: Launch
    workers: int
    selection: str
    machines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resumption:
    """The run as it was, and what shall be different."""

    past: Past
    wanted: dict[str, Any]
    workers: int | None
    launcher: str | None
    pool: Path | None
    machines: str | None
    name: str | None
    follow_links: bool

    def strategy(self, manifest: CheckpointManifest) -> str:
        """What it was trained with last, which a switch may have changed, if not told otherwise."""
        from phalanx.core.spec import parse_spec

        return parse_spec(self.wanted.get("strategy", manifest.strategy)).text

    def title(self, manifest: CheckpointManifest) -> str:
        return f"{self.name or _name_of(self.past)}-{self.strategy(manifest)}{SUFFIX}"

    def request(self, command: list[str]) -> Request:
        """Checked like a new run's."""
        from phalanx.cli.request.request import Options, check
        from phalanx.cli.request.values import Emulation, Travel

        launch = self.past.launch
        settings = launch.settings
        _check_script_is_there(self.past)
        options = Options(
            script=Path(launch.script),
            words=tuple(launch.arguments),
            command=command,
            workers=self._workers(),
            pool=self.pool or (Path(launch.pool) if launch.pool else None),
            machines=self.machines or ("all" if self.pool else self.past.selection),
            launcher=self.launcher or ("auto" if launch.pool or self.pool else launch.launcher),
            epochs=self.wanted.get("epochs"),
            seed=settings.seed,
            precision=settings.precision,
            balance=self.wanted.get("balance", settings.balance),
            on_nonfinite=self.wanted.get("on_nonfinite", settings.on_nonfinite),
            emulation=Emulation(tuple(self.wanted.get("slow", ()))),
            travel=Travel(follow_links=self.follow_links),
        )
        return check(options)

    def _workers(self) -> int | None:
        """As many as before, unless it goes on with other machines: then as they have room."""
        if self.workers is None and (self.machines or self.pool):
            return None
        return self.past.workers if self.workers is None else self.workers

    def job(self, request: Request, checkpoint: Path, manifest: CheckpointManifest) -> Job:
        import msgspec

        from phalanx.cli.request.checkpoint_choice import run_of
        from phalanx.cli.request.request import speeds_of

        settings = msgspec.structs.replace(self.past.launch.settings, **self.wanted)
        if settings.batch_per_worker is not None:
            # The global batch is what the mathematics depend on: other workers do not change it.
            batch = self.wanted.get("batch", manifest.batch)
            settings = msgspec.structs.replace(settings, batch=batch, batch_per_worker=None)
        job = request.job(self.strategy(manifest), settings.batch)
        settings = msgspec.structs.replace(
            settings,
            strategy=self.strategy(manifest),
            slow=speeds_of(settings.slow or (), job.plan.workers),
            data=job.settings.data or settings.data,
            resume=str(checkpoint.resolve()),
        )
        source = f"{run_of(checkpoint)}, checkpoint {manifest.number}"
        return replace(job, settings=settings, resumes=source, fleet=_fleet(job, settings))


def _fleet(job: Job, settings: RunSettings) -> Fleet:
    """What ``--data`` sent to the machines is sent again, which it need not be if it is there."""
    if settings.data is None or settings.data in {m.data for m in job.fleet.machines}:
        return job.fleet
    return replace(job.fleet, data=Path(settings.data))


def changed_machines(past: Past, job: Job) -> str | None:
    """Who goes on, where that is not who was there before."""
    now = [machine.name for machine in job.plan.machines]
    without = [name for name in past.machines if name not in now]
    if not without:
        return None
    workers = "1 worker" if job.plan.workers == 1 else f"{job.plan.workers} workers"
    return f"without {', '.join(without)}: {workers} on {', '.join(now)} (was {past.workers})"


def changed_sources(paths: RunPaths, script: Path) -> list[str]:
    """What the script and its modules are no longer, compared with the run's copy of them."""
    folder = script.resolve().parent
    remarks = []
    for kept in sorted(file for file in paths.source.rglob("*.py") if file.is_file()):
        name = kept.relative_to(paths.source)
        now = folder / name
        if not now.is_file():
            remarks.append(f"{name} is gone since the run began (its copy: {kept})")
        elif not filecmp.cmp(now, kept, shallow=False):
            remarks.append(f"{name} has changed since the run began (as it was: {kept})")
    return remarks


def _read(paths: RunPaths) -> Past:
    from phalanx.launch.launchers.launcher import read_launch

    launch, plan = read_launch(paths)
    machines = tuple(machine.name for machine in plan.machines)
    return Past(paths, launch, plan.workers, plan.selection, machines)


def _check_is_own(past: Past, pool: Path | None, trust: bool) -> None:
    """What a folder names is started only if it is the user's own, or the user has said so."""
    from phalanx.core.run_folder.trust import refuse_foreign

    launch = past.launch
    if not trust:
        words = " ".join([launch.script, *launch.arguments])[:MOST_SHOWN]
        refuse_foreign(past.paths, f"start {words}", "If that is what you want: --trust")
    elif launch.pool and pool is None:
        would = f"contact the machines of {launch.pool}"
        refuse_foreign(past.paths, would, "Name your own blueprint: --pool FILE")


def _check_can_go_on(past: Past, there_is_more: bool) -> None:
    from phalanx.cli.request.find_run import summary_of
    from phalanx.core.errors import InputError
    from phalanx.observe.summary.run_status import controller_alive

    name = past.paths.id
    if controller_alive(past.paths) or past.paths.detached.exists():
        raise InputError(f"'{name}' is still running", f"Stop it first: phalanx stop {name}")
    if summary_of(past.paths).status == "done" and not there_is_more:
        raise InputError(f"'{name}' is done", "Train it for longer: --epochs N (in all).")


def _check_there_is_more(epochs: int | None, manifest: CheckpointManifest) -> None:
    from phalanx.core.errors import InputError

    if epochs is None or manifest.epoch * manifest.samples + manifest.position < (
        epochs * manifest.samples
    ):
        return
    raise InputError(
        f"--epochs {epochs} leaves nothing to train: checkpoint {manifest.number} is "
        f"{'' if manifest.position >= manifest.samples else 'in '}{where(manifest)}",
        "--epochs counts from the beginning; an earlier one: --checkpoint N.",
    )


def _check_script_is_there(past: Past) -> None:
    from phalanx.core.errors import InputError

    script = Path(past.launch.script)
    if script.is_file():
        return
    where = "Is this the folder in which the run was started?" if not script.is_absolute() else ""
    copy = past.paths.source / script.name
    kept = f"A copy is kept: {copy}" if copy.is_file() else ""
    raise InputError(f"the script '{script}' is gone", " ".join(w for w in (where, kept) if w))


def _when(every: str | None, keep: int | None, before: RunSettings) -> dict[str, Any]:
    from phalanx.cli.request.values import read_checkpoints

    if every is None:
        return {} if keep is None else {"keep": read_checkpoints("0", keep).keep}
    read = read_checkpoints(every, before.keep if keep is None else keep)
    return {
        "checkpoint_epochs": read.epochs,
        "checkpoint_minutes": read.minutes,
        "keep": read.keep,
    }


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _name_of(past: Past) -> str:
    """The name that the run was given: its id without moment, strategy and suffix."""
    from phalanx.core.run_folder.run_paths import slug

    name = re.sub(r"^\d{8}-\d{6}-", "", past.paths.id)
    name = re.sub(rf"{SUFFIX}(-\d+)?$", "", name)
    return name.removesuffix(f"-{slug(past.launch.settings.strategy)}")
