"""Which checkpoint of a run a verb means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.core.errors import InputError
from phalanx.core.run_paths import RunPaths

if TYPE_CHECKING:
    from phalanx.cli.output import Output
    from phalanx.train.checkpoint.manifest import Manifest


def find_checkpoint(
    paths: RunPaths, number: int | None, out: Output, *, fetch: bool = False
) -> tuple[Path, Manifest]:
    """The newest one that is whole, or the one of this ``number``.

    ``fetch``: machines that may still have one are asked, if the run was left alone.
    """
    from phalanx.train.checkpoint import shelf
    from phalanx.train.checkpoint.manifest import folder_name

    if number is None:
        return _newest(paths, out, fetch)
    there = shelf.numbers(paths.checkpoints)
    if number not in there:
        known = f"It has {', '.join(map(str, there))}." if there else "It has none."
        raise InputError(f"'{paths.id}' has no checkpoint {number}", known)
    path = paths.checkpoints / folder_name(number)
    return path, shelf.verified(path)


def run_of(checkpoint: Path) -> str:
    """The id of the run whose checkpoint this is."""
    return checkpoint.absolute().parent.parent.name


def _newest(paths: RunPaths, out: Output, fetch: bool) -> tuple[Path, Manifest]:
    from phalanx.train.checkpoint import shelf

    if fetch and not shelf.numbers(paths.checkpoints):
        _fetch_left(paths, out)
    try:
        path, manifest, remarks = shelf.newest_valid(paths.checkpoints)
    except InputError:
        if (found := _begun_from(paths)) is None:
            raise
        out.note(f"{paths.id} has no checkpoint of its own: the one that it began from is taken")
        return found
    for remark in remarks:
        out.note(f"warning: {remark}")
    return path, manifest


def _fetch_left(paths: RunPaths, out: Output) -> None:
    """Where the controller was killed, the machines still have what the workers saved."""
    from phalanx.core.errors import PhalanxError
    from phalanx.observe.records import LaunchRecord, read_record

    launch = read_record(paths.launch, LaunchRecord)
    if launch is None or launch.launcher != "ssh" or paths.summary.exists():
        return
    from phalanx.cli.attach import past_job
    from phalanx.launch.salvage import salvage

    out.note(f"{paths.id} was left alone: looking for its results on its machines")
    try:
        salvage(past_job(paths, None).fleet.machines, paths, out.note)
    except PhalanxError as error:
        out.note(f"warning: {error.cause}")


def _begun_from(paths: RunPaths) -> tuple[Path, Manifest] | None:
    """The checkpoint that a resumed run went on from, if it is still there and whole."""
    from phalanx.observe.records import LaunchRecord, read_record
    from phalanx.train.checkpoint import shelf

    launch = read_record(paths.launch, LaunchRecord)
    if launch is None or launch.settings is None or launch.settings.resume is None:
        return None
    path = Path(launch.settings.resume)
    try:
        return path, shelf.verified(path)
    except InputError:
        return None
