"""``phalanx export``: the weights of a run as one plain file, or its figures for other tools."""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths

TRIES = 5


def export(
    run: o.RunName = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: the run's id with .safetensors.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best weights instead of the last.")
    ] = False,
    checkpoint: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="The weights of this checkpoint.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the run's curves for TensorBoard, to DIR/RUN."),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the run's last figures for Prometheus; -: print."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: o.Json = False,
) -> int:
    """Write the weights of a run to a safetensors file, or its figures for other tools.

    A finished run gives its final weights, any other run those of its newest checkpoint.
    """
    from phalanx.cli.request.find_run import single_run

    if best and checkpoint is not None:
        raise InputError("--best and --checkpoint cannot be combined", "Give one of them.")
    out = Output(json)
    paths = single_run(run, "export")
    if tensorboard is not None or prometheus is not None:
        also = output or best or checkpoint is not None
        return _figures(paths, tensorboard, prometheus, force, out, also=bool(also))
    target = output or Path(f"{paths.id}{'-best' if best else ''}.safetensors")
    _check_target(target, force)
    for left in reversed(range(TRIES)):
        source = _source(paths, best, checkpoint, out)
        try:
            tensors, parameters = _write(target, source.save, force)
            break
        except InputError:
            # A run in progress may have replaced the checkpoint by a newer one.
            if not left or source.place.exists():
                raise
    out.say(f"wrote   {target}")
    out.say(f"from    {source.words}")
    out.say(f"holds   {tensors:,} tensors, {parameters:,} values, {target.stat().st_size:,} bytes")
    out.result(
        {
            "run": paths.id,
            "file": str(target),
            "source": source.words,
            "tensors": tensors,
            "parameters": parameters,
            "bytes": target.stat().st_size,
        }
    )
    return 0


def _figures(
    paths: RunPaths, board: Path | None, text_file: str | None, force: bool, out: Output, *,
    also: bool,
) -> int:  # fmt: skip
    """Write a run's figures for other tools; ``also``: whether weights were asked for, too."""
    from phalanx.cli.request.find_run import summary_of
    from phalanx.core.files import write_whole
    from phalanx.observe.summary.run_records import read_run
    from phalanx.report.exports import SUFFIX, prometheus_text, write_tensorboard

    if also:
        told = "--tensorboard and --prometheus write figures, and the other options weights"
        raise InputError(told, "Export them one after the other.")
    if out.json and text_file == "-":
        raise InputError("--prometheus - cannot be combined with --json", "Name a file.")
    summary, run = summary_of(paths), read_run(paths)
    folder = board and board / paths.id
    if not run.joined or not summary.history:
        raise InputError(f"'{paths.id}' has no epoch yet", "Wait for one, or name another run.")
    try:
        if folder is not None:
            before = list(folder.glob(f"*{SUFFIX}"))
            if before and not force:
                raise InputError(f"{folder} has this run already", "Replace it with --force.")
            write_tensorboard(summary, run, folder)
            for file in before:
                file.unlink()
            out.say(f"wrote   {folder} ({len(summary.history)} epochs)")
        if text_file == "-":
            print(prometheus_text(summary), end="")
        elif text_file is not None:
            write_whole(Path(text_file), prometheus_text(summary))
            out.say(f"wrote   {text_file}")
    except OSError as error:
        where = error.filename or board or text_file
        raise InputError(f"cannot write {where}: {error.strerror}", "Name another place.") from None
    written = {"tensorboard": folder and str(folder), "prometheus": text_file}
    out.result({"run": paths.id, **written})
    return 0


@dataclass(frozen=True)
class WeightsSource:
    """The weights' origin (in words, and as a path), and a function that saves them."""

    words: str
    place: Path
    save: Callable[[Path], object]


def _source(paths: RunPaths, best: bool, checkpoint: int | None, out: Output) -> WeightsSource:
    if checkpoint is not None:
        return _from_checkpoint(paths, checkpoint, out)
    file = paths.best if best else paths.model
    if file.is_file():
        what = "best weights" if best else "final weights"
        return WeightsSource(f"the {what} of {paths.id}", file, partial(shutil.copyfile, file))
    if not best:
        return _from_checkpoint(paths, None, out)
    from phalanx.train.checkpoint.checkpoint_index import read_best

    if (record := read_best(paths.checkpoints)) is None:
        raise InputError(
            f"'{paths.id}' kept no best weights", "In the script: fit(best=…) or run.save_best(…)."
        )
    return _from_checkpoint(paths, record.number, out)


def _from_checkpoint(paths: RunPaths, number: int | None, out: Output) -> WeightsSource:
    from phalanx.cli.request.checkpoint_choice import find_checkpoint, run_of
    from phalanx.cli.verbs.resume import where

    folder, manifest = find_checkpoint(paths, number, out)

    def save(target: Path) -> None:
        from safetensors.torch import save_file

        from phalanx.adapters.torch_models import as_pairs
        from phalanx.train.checkpoint.tensor_files import state_dict

        save_file(as_pairs(state_dict(folder, manifest)), target)

    words = f"checkpoint {manifest.number} of {run_of(folder)} ({where(manifest)})"
    return WeightsSource(words, folder, save)


def _check_target(target: Path, force: bool) -> None:
    if target.is_dir():
        raise InputError(f"{target} is a folder", "Name a file: --output model.safetensors")
    if not target.absolute().parent.is_dir():
        raise InputError(f"there is no folder {target.parent}", "Create it first.")
    if target.exists() and not target.is_file():
        raise InputError(f"{target} is not a plain file", "Name another: --output FILE")
    if os.path.lexists(target) and not force:
        raise InputError(f"{target} already exists", "Replace it with --force.")


def _write(target: Path, save: Callable[[Path], object], force: bool) -> tuple[int, int]:
    """Write the whole file or nothing; return its numbers of tensors and values."""
    scratch = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        save(scratch)
        held = _contents(scratch)
        _check_target(target, force)
        scratch.replace(target)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror or error}", "Name another: --output FILE"
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    return held


def _contents(file: Path) -> tuple[int, int]:
    """Return the number of tensors, and the number of values in all of them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as weights:
            shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"the weights are damaged: {error}", "Use --checkpoint N.") from error
    return len(shapes), sum(math.prod(shape) for shape in shapes)
