"""Find the checkpoint of a run that a verb uses."""

from __future__ import annotations

from pathlib import Path

from phalanx.cli.output import Output
from phalanx.cli.request.find_run import past_job, summary_of
from phalanx.core.errors import InputError, PhalanxError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launchers.attached import salvage
from phalanx.observe.summary.run_records import LaunchRecord, read_record
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest, folder_name


def find_checkpoint(
    paths: RunPaths, number: int | None, out: Output, *, fetch: bool = False
) -> tuple[Path, CheckpointManifest]:
    """Return the newest complete checkpoint, or the one with this ``number``.

    ``fetch``: without a number, first look for a newer one on the run's machines.
    """
    if number is None:
        return _newest(paths, out, fetch)
    there = shelf.numbers(paths.checkpoints)
    if number not in there:
        known = f"It has {', '.join(map(str, there))}." if there else "It has none."
        raise InputError(f"'{paths.id}' has no checkpoint {number}", known)
    path = paths.checkpoints / folder_name(number)
    return path, shelf.verified(path)


def run_of(checkpoint: Path) -> str:
    """Return the id of the run that has this checkpoint."""
    return checkpoint.absolute().parent.parent.name


def _newest(paths: RunPaths, out: Output, fetch: bool) -> tuple[Path, CheckpointManifest]:
    silent = _fetch_left(paths, out) if fetch else {}
    try:
        path, manifest, remarks = shelf.newest_valid(paths.checkpoints)
    except InputError as error:
        if (found := _begun_from(paths)) is None:
            raise _with_silent(error, silent) from None
        out.note(f"{paths.id} has no checkpoint of its own; using the one that it started from")
        return found
    for remark in remarks:
        out.note(f"warning: {remark}")
    return path, manifest


def _fetch_left(paths: RunPaths, out: Output) -> dict[str, str]:
    """Fetch a checkpoint left on machines whose controller was killed, or that were cut off.
    Return the machines that could not be asked, each with the reason."""
    launch = read_record(paths.launch, LaunchRecord)
    if launch is None or launch.launcher != "ssh" or not _is_one_missing(paths):
        return {}

    out.note(f"{paths.id}: looking for newer checkpoints on its machines")
    try:
        silent = salvage(past_job(paths, None).fleet.machines, paths, out.note)
    except PhalanxError as error:
        silent = {"its machines": error.cause}
    for name, why in silent.items():
        out.note(f"warning: {name} could not be checked for a newer checkpoint: {why}")
    return silent


def _is_one_missing(paths: RunPaths) -> bool:
    """Whether the run began to write a newer checkpoint than is here."""
    there, written = shelf.numbers(paths.checkpoints), summary_of(paths).checkpoint
    if written is None:
        return not there and not paths.summary.exists()
    number = written.path.rpartition("/")[2]
    return not there or (number.isdecimal() and int(number) > there[-1])


def _with_silent(error: InputError, silent: dict[str, str]) -> InputError:
    """Add the machines that did not answer to the error that no checkpoint was found."""
    if not silent:
        return error
    names = ", ".join(silent)
    return InputError(
        f"{error.cause}: none was fetched yet, and {names} could not be reached",
        "Resume again when these machines can be reached, or start the run from the beginning.",
    )


def _begun_from(paths: RunPaths) -> tuple[Path, CheckpointManifest] | None:
    """Return the checkpoint that a resumed run started from, if it still exists and is complete."""
    launch = read_record(paths.launch, LaunchRecord)
    if launch is None or launch.settings is None or launch.settings.resume is None:
        return None
    path = Path(launch.settings.resume)
    try:
        return path, shelf.verified(path)
    except InputError:
        return None
