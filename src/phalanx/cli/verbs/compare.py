"""``phalanx compare``: one script, several strategies, one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.request import options as o

if TYPE_CHECKING:
    from phalanx.cli.request.request import Request
    from phalanx.core.spec import Spec

DEFAULT = "allreduce,async,switch:at=0.5"
MOST_REPEATS = 1000


def compare(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    strategies: o.Strategies = DEFAULT,
    systems: o.Systems = None,
    peer: o.PeerScripts = None,
    single: Annotated[
        bool, typer.Option(help="Also train with one process, which the others have to beat.")
    ] = True,
    workers: o.Workers = None,
    pool: o.PoolFile = None,
    machines: o.Machines = "all",
    launcher: o.LauncherName = "auto",
    epochs: o.Epochs = None,
    batch: o.Batches = None,
    batch_per_worker: o.BatchPerWorker = None,
    repeat: Annotated[
        int, typer.Option(metavar="N", help="Runs of each; repeat i uses seed + i.")
    ] = 1,
    seed: o.Seed = 0,
    precision: o.PrecisionName = "float32",
    balance: o.Balance = "auto",
    on_nonfinite: o.OnNonfinite = "skip",
    slow: o.Slow = None,
    rate: o.Rate = None,
    checkpoint_every: o.CheckpointEvery = "0",
    keep: o.Keep = 3,
    data: o.DataFolder = None,
    ship_limit: o.ShipLimit = None,
    follow_links: o.FollowLinks = False,
    name: o.Name = None,
    dry_run: o.DryRun = False,
    json: o.Json = False,
) -> int:
    """Train SCRIPT with every strategy; say which was best.

    Strategies, batches and repeats are combined; each combination is a run of its own. The table,
    the verdict and report.html are about them all. A run that fails is marked, the others go on.
    """
    from phalanx.cli.request.request import (
        Options,
        check,
        check_at_least,
        check_at_most,
        read_batches,
        refuse_two_batches,
    )
    from phalanx.cli.request.systems import compare_systems, read_systems
    from phalanx.cli.request.values import (
        Emulation,
        read_checkpoints,
        read_rate,
        read_slow,
        read_travel,
    )
    from phalanx.core.spec import parse_specs

    wanted = read_systems(ctx, systems, peer, strategies, script)
    specs = rows(parse_specs(strategies), single)
    check_at_least("--repeat", repeat, 1)
    check_at_most("--repeat", repeat, MOST_REPEATS)
    batches = read_batches(batch)
    refuse_two_batches(batch, batch_per_worker)
    request = check(
        Options(
            script=script,
            module=module,
            words=ctx.obj.words,
            command=ctx.obj.command,
            workers=workers,
            pool=pool,
            machines=machines,
            launcher=launcher,
            epochs=epochs,
            batch_per_worker=batch_per_worker,
            seed=seed,
            precision=precision,
            name=name,
            balance=balance,
            on_nonfinite=on_nonfinite,
            emulation=Emulation(read_slow(slow), read_rate(rate)),
            checkpoints=read_checkpoints(checkpoint_every, keep),
            travel=read_travel(data, ship_limit, follow_links=follow_links),
        )
    )
    if wanted is not None:
        return compare_systems(request, wanted, batches, repeat, json=json, dry_run=dry_run)
    return compare_checked(request, specs, batches, repeat, json=json, dry_run=dry_run)


def rows(specs: list[Spec], single: bool) -> list[str]:
    """The strategies as rows: ``single`` first, none twice."""
    from phalanx.core.errors import InputError

    texts = [spec.text for spec in specs]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice:
        raise InputError(f"--strategies names '{twice}' twice", "--repeat runs each one again.")
    if "single" in texts or single:
        texts = ["single", *(text for text in texts if text != "single")]
    return texts


def compare_checked(
    request: Request,
    strategies: list[str],
    batches: list[int | None],
    repeat: int,
    *,
    json: bool = False,
    dry_run: bool = False,
) -> int:
    """Everything after the options: also what ``demo`` does."""
    from phalanx.cli.request.study import StudyRun, matrix, show_or_execute, start_of

    out, batches = start_of(request, batches, json)
    if request.workers == 1 and strategies != ["single"]:
        out.note("note: one worker has no other to agree with; --workers 2 makes a comparison")
    study = StudyRun(request, matrix(strategies, batches, repeat), repeat, out)
    return show_or_execute(study, out, dry_run)
