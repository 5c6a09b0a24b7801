"""``phalanx worker``: one process of a run that torchrun, mpirun or srun starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean

if TYPE_CHECKING:
    from phalanx.core.settings import RunSettings
    from phalanx.train.start.launcher_env import Seat

ScriptOrNone = Annotated[
    Path | None,
    typer.Argument(metavar="[SCRIPT]", help="The training script. Arguments after -- go to it."),
]


def worker(
    ctx: typer.Context,
    script: ScriptOrNone = None,
    strategy: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="How workers synchronise. Default: allreduce."),
    ] = None,
    epochs: o.Epochs = None,
    batch: o.Batch = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Default: 0.")] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, float32, tf32, bfloat16 or float16.")
    ] = None,
    pool: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A blueprint that has the machines' addresses."),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(metavar="N|NAMES", help="Parameter servers: how many, or on which machines."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Run as a parameter server, without training.")
    ] = False,
    name: o.Name = None,
    new_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a new run key and exit.")
    ] = None,
    json: o.Json = False,
) -> int:
    """Run SCRIPT as one of the processes that torchrun, mpirun or srun starts.

    The launcher's variables say which one; PHALANX_KEY_FILE is the file with their common key.
    """
    out = Output(json)
    if new_key is not None:
        return _write_key(new_key, out)
    seat = _seat()
    training = None if serve else _script(script)
    _check_key()
    settings = _settings(
        strategy=strategy, epochs=epochs, batch=batch, seed=seed, precision=precision
    )
    if settings.batch is not None and settings.batch < seat.processes:
        raise InputError(
            f"a batch of {settings.batch} is too small for {seat.processes} workers",
            f"Use --batch {seat.processes} or more.",
        )
    _publish(settings, seat, pool, servers, serve)
    if training is None:
        from phalanx.train.start.joining_hosts import serve as serve_shards

        serve_shards(seat)
    from phalanx.cli.verbs.worker_run import job_of, train

    title = f"{name or training.stem}-{settings.strategy}-{seat.run[:40]}"
    job = job_of(seat, settings, training, list(ctx.obj.words), ctx.obj.command)
    return train(seat, job, title, out)


def _write_key(path: Path, out: Output) -> int:
    """Write a new key to a new file: a key that may be in use is never replaced."""
    from phalanx.core.run_folder.run_key import RunKey

    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InputError(f"{path} already exists", "Name another file, or remove it.") from None
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot write {path}: {why}", "Name another file.") from error
    with os.fdopen(file, "w") as stream:
        stream.write(RunKey.new().text() + "\n")
    out.say(f"wrote a new key to {path}; give it to all processes: PHALANX_KEY_FILE={path}")
    out.result({"key_file": str(path)})
    return 0


def _seat() -> Seat:
    import socket

    from phalanx.core import settings
    from phalanx.train.start.launcher_env import seat_of

    if settings.RANK in os.environ:
        raise InputError(
            f"{settings.RANK} is set: this process is already a worker of a run",
            f"Do not start it from a script under phalanx run; or unset {settings.RANK}.",
        )
    seat = seat_of(os.environ, socket.gethostname())
    if seat is None:
        raise InputError(
            "no launcher started this process: none of the launchers' variables is set",
            "Start two or more processes with torchrun, mpirun or srun; or use phalanx run.",
        )
    return seat


def _script(script: Path | None) -> Path:
    from phalanx.launch.script.script_check import check_script, may_call_phalanx

    if script is None:
        raise InputError("no script is named", "For example: phalanx worker train.py")
    if not may_call_phalanx(check_script(script)):
        raise InputError(
            f"'{script}' does not call Phalanx, which a worker of another launcher has to",
            "Start it by phalanx run, which adopts it, or call phalanx.join in it.",
        )
    return script


def _check_key() -> None:
    from phalanx.core.run_folder.run_key import KEY_FILE_VARIABLE, key_from

    if key_from(os.environ) is None:
        raise InputError(
            f"{KEY_FILE_VARIABLE} is not set, but workers authenticate with this key",
            "Create a key with phalanx worker --new-key FILE, and give all processes the same one.",
        )


def _settings(**given: Any) -> RunSettings:
    """Return the settings in environment variables, overridden by the command line."""
    from msgspec.structs import replace

    from phalanx.cli.request.request import MOST_SEED
    from phalanx.cli.request.values import check_at_least, check_at_most
    from phalanx.core.settings import PRECISIONS
    from phalanx.core.spec import parse_spec
    from phalanx.train.start.launcher_env import settings_of

    for option, least in (("epochs", 1), ("batch", 1), ("seed", 0)):
        check_at_least(f"--{option}", given[option], least)
    check_at_most("--seed", given["seed"] or 0, MOST_SEED - 1)
    precision = given["precision"]
    if precision is not None and precision not in PRECISIONS:
        raise InputError(f"unknown precision '{precision}'", did_you_mean(precision, PRECISIONS))
    if given["strategy"] is not None:
        spec = parse_spec(given["strategy"])
        given |= {"strategy": spec.text, "balance": "off" if spec.equal_shares else None}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(settings_of(os.environ), **chosen)


def _publish(
    settings: RunSettings, seat: Seat, pool: Path | None, servers: str | None, serve: bool
) -> None:
    """Set the environment variables that the script's ``fit`` or ``join`` will read."""
    from phalanx.core import hosts_settings as hosts
    from phalanx.core.settings import SETTINGS, THREADS

    os.environ[SETTINGS] = settings.to_json()
    if pool is not None:
        from phalanx.pool.blueprint import read_blueprint

        read_blueprint(pool)  # report its mistakes now
        os.environ[hosts.POOL] = str(pool.absolute())
    if servers is not None:
        os.environ[hosts.SERVERS] = servers
    if serve:
        os.environ[hosts.SERVE] = "1"
    usable = len(os.sched_getaffinity(0))  # a launcher may have bound this process
    share = max(1, min(usable, (os.cpu_count() or 1) // (seat.locals or 1)))
    # A number that the launcher or the user chose for one library counts for all libraries.
    threads = next((os.environ[v] for v in THREADS if v in os.environ), share)
    for variable in THREADS:
        os.environ.setdefault(variable, str(threads))
