"""Resume a run: its records, the options that change it, and the job made from both."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.cli.invocation import Invocation
    from phalanx.cli.request.request import Request
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.core.settings import RunSettings
    from phalanx.launch.launcher import Fleet, Job, Launch
    from phalanx.plan.plan import Plan
    from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest

SUFFIX = "-resumed"
Same = "Replaces the run's value."
Text = str | None
Number = int | None


@dataclass(frozen=True)
class ResumeOptions:
    """The options of ``resume`` as typed; with ``None`` a setting stays as it was."""

    strategy: o.NewStrategy = None
    workers: Annotated[Number, typer.Option(metavar="N", help=Same)] = None
    epochs: Annotated[Number, typer.Option(metavar="N", help="Total; " + Same.lower())] = None
    batch: Annotated[Number, typer.Option(metavar="N", help=Same)] = None
    checkpoint: Annotated[
        Number, typer.Option(metavar="NUMBER", help="Its number. Default: the newest complete one.")
    ] = None
    launcher: Annotated[Text, typer.Option(metavar="NAME", help=Same)] = None
    pool: Annotated[Path | None, typer.Option("--pool", metavar="FILE", help=Same)] = None
    machines: Annotated[Text, typer.Option(metavar="SELECTION", help=Same)] = None
    slow: Annotated[Text, typer.Option(metavar="F,F,…", help=Same)] = None
    rate: Annotated[Text, typer.Option("--rate", metavar="RATE", help=Same)] = None
    checkpoint_every: Annotated[Text, typer.Option(metavar="N", help=Same)] = None
    name: Annotated[
        Text, typer.Option("--name", metavar="NAME", help="Name in its id. Default: the run's.")
    ] = None
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Accept a run folder created elsewhere or by another user."),
    ] = False
    dry_run: o.DryRun = False
    json: o.Json = False

    def settings(self, before: RunSettings) -> dict[str, Any]:
        """Return the settings that were given on this command line, by their names."""
        from phalanx.cli.request.values import read_checkpoints, read_rate, read_slow

        given = {name: getattr(self, name) for name in ("strategy", "epochs", "batch")}
        given |= {"slow": list(read_slow(self.slow)) or None, "rate": read_rate(self.rate)}
        found = {name: value for name, value in given.items() if value is not None}
        if (every := self.checkpoint_every) is not None:
            times = read_checkpoints(every, before.keep)
            found["keep"] = times.keep
            if not every.strip().startswith("keep=") or "," in every:
                found |= {"checkpoint_epochs": times.epochs, "checkpoint_minutes": times.minutes}
                found["checkpoint_gap"] = times.gap
        return found


@dataclass(frozen=True)
class Resumption:
    """The records of a past run, and the options that change it."""

    paths: RunPaths
    launch: Launch
    plan: Plan
    options: ResumeOptions

    def strategy(self, manifest: CheckpointManifest) -> str:
        """Return --strategy, else the checkpoint's strategy, which a switch may have changed."""
        from phalanx.core.spec import parse_spec

        asked = self.options.strategy
        return parse_spec(manifest.strategy if asked is None else asked).text

    def title(self, manifest: CheckpointManifest) -> str:
        return f"{self.options.name or self._name()}-{self.strategy(manifest)}{SUFFIX}"

    def request(self, invocation: Invocation) -> Request:
        """Return the request, checked like that of a new run."""
        from phalanx.cli.request.request import check

        launch, asked = self.launch, self.options
        settings = launch.settings
        self._check_script_is_there()
        before = ":".join(filter(None, (launch.launcher, launch.cluster)))
        launcher = asked.launcher or ("auto" if launch.pool or asked.pool else before)
        if launcher == launch.launcher:
            launcher = before
        options = o.RunOptions(
            workers=self._workers(),
            pool=asked.pool or (Path(launch.pool) if launch.pool else None),
            machines=asked.machines or ("all" if asked.pool else self.plan.selection),
            launcher=launcher,
            epochs=asked.epochs,
            seed=settings.seed,
            precision=settings.precision,
            compile=settings.compile,
            slow=asked.slow,
        )
        request = check(options, Path(launch.script), invocation)
        return replace(request, words=tuple(launch.arguments))

    def _workers(self) -> int | None:
        """Return --workers, ``None`` (as many as fit) for other machines, else the run's number."""
        asked = self.options
        if asked.workers is None and (asked.machines or asked.pool):
            return None
        return self.plan.workers if asked.workers is None else asked.workers

    def job(self, request: Request, checkpoint: Path, manifest: CheckpointManifest) -> Job:
        import msgspec

        from phalanx.cli.request.checkpoint_choice import run_of
        from phalanx.cli.request.request import speeds_of

        before = self.launch.settings
        settings = msgspec.structs.replace(before, **self.options.settings(before))
        job = request.job(self.strategy(manifest), settings.batch)
        settings = msgspec.structs.replace(
            settings,
            strategy=job.settings.strategy,
            balance=job.settings.balance,
            slow=speeds_of(settings.slow or (), job.plan.workers),
            data=job.settings.data or settings.data,
            resume=str(checkpoint.resolve()),
        )
        source = f"{run_of(checkpoint)}, checkpoint {manifest.number}"
        return replace(job, settings=settings, resumes=source, fleet=_fleet(job, settings))

    def _check_script_is_there(self) -> None:
        script = Path(self.launch.script)
        if script.is_file():
            return
        where = "Go to the folder where the run was started." if not script.is_absolute() else ""
        copy = self.paths.source / script.name
        kept = f"A copy is in {copy}." if copy.is_file() else ""
        raise InputError(f"there is no script '{script}'", " ".join(w for w in (where, kept) if w))

    def _name(self) -> str:
        """Return the run's name: its id without time, strategy and suffix."""
        from phalanx.core.run_folder.run_paths import slug

        name = re.sub(r"^\d{8}-\d{6}-", "", self.paths.id)
        name = re.sub(rf"{SUFFIX}(-\d+)?$", "", name)
        return name.removesuffix(f"-{slug(self.launch.settings.strategy)}")


def _fleet(job: Job, settings: RunSettings) -> Fleet:
    """Return the fleet; it copies the run's data folder again if no machine has that path."""
    if settings.data is None or settings.data in {m.data for m in job.fleet.machines}:
        return job.fleet
    return replace(job.fleet, data=Path(settings.data))
