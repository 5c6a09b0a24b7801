"""Keeps the folder of checkpoints: finds the newest whole one, and removes old ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.files import read_bounded
from phalanx.train.checkpoint.checkpoint_manifest import (
    BEST,
    LARGEST_NOTE,
    BestRecord,
    CheckpointManifest,
    Damaged,
    folder_name,
    leftover_number,
    number_of,
    read_manifest,
    removed_name,
)
from phalanx.train.checkpoint.disk import Steps, scratch_of, unwatched, write_durably


def numbers(folder: Path) -> list[int]:
    """Return the numbers of all finished checkpoints, oldest first; some may be damaged."""
    found = (number_of(name) for name in _names(folder))
    return sorted(number for number in found if number is not None)


def next_number(folder: Path) -> int:
    """Return a number that no checkpoint here has or had, not even one that was never finished."""
    names = _names(folder)
    used = [n for name in names for n in (number_of(name), leftover_number(name)) if n is not None]
    best = read_best(folder)
    return max([*used, best.number if best else 0, 0]) + 1


def newest_valid(folder: Path) -> tuple[Path, CheckpointManifest, list[str]]:
    """Return the newest checkpoint that is whole, and a remark about each one that was skipped."""
    remarks: list[str] = []
    for number in reversed(numbers(folder)):
        checkpoint = folder / folder_name(number)
        try:
            manifest = check(checkpoint)
            if manifest.finite:
                return checkpoint, manifest, remarks
            remarks.append(f"{folder.name}/{checkpoint.name}: its weights are not finite, skipped")
        except Damaged as damage:
            remarks.append(f"{folder.name}/{checkpoint.name}: {damage}, skipped")
    remedy = "; ".join(remarks) or "Start it again: it ended before it wrote one."
    raise InputError(f"{folder.resolve().parent.name} has no checkpoint to resume from", remedy)


def verified(checkpoint: Path) -> CheckpointManifest:
    """Return the manifest of ``checkpoint``; refuse the checkpoint if a file of it is damaged."""
    try:
        return check(checkpoint)
    except Damaged as damage:
        raise InputError(f"{checkpoint}: {damage}", "Resume from another checkpoint.") from damage


def check(checkpoint: Path) -> CheckpointManifest:
    """Read every byte of a checkpoint; raise ``Damaged`` if it cannot be used."""
    manifest = read_manifest(checkpoint)
    for name, record in manifest.files.items():
        try:
            # Open neither a link, which leads elsewhere, nor a pipe, which never ends.
            path = checkpoint / name
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode):
                raise Damaged(f"{path.name} is not a plain file")
            if about.st_size != record.bytes:
                raise Damaged(f"{path.name} is damaged ({about.st_size} of {record.bytes} bytes)")
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                    raise Damaged(f"{path.name} is damaged (checksum)")
        except FileNotFoundError as error:
            raise Damaged(f"{name} is missing") from error
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error
    return manifest


def read_best(folder: Path) -> BestRecord | None:
    try:
        return msgspec.json.decode(read_bounded(folder / BEST, LARGEST_NOTE), type=BestRecord)
    except (OSError, InputError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_best(folder: Path, best: BestRecord, steps: Steps = unwatched) -> None:
    write_durably(folder / BEST, msgspec.json.encode(best), steps)


def prune(folder: Path, keep: int, upto: int, steps: Steps = unwatched) -> None:
    """Remove all but the newest ``keep``, the best, and the newest finite one; see ``sweep``."""
    steps("prune")
    sweep(folder, upto, steps)
    there = numbers(folder)
    best = read_best(folder)
    sound = next((n for n in reversed(there) if _is_finite(folder / folder_name(n))), -1)
    kept = {*there[-max(1, keep) :], best.number if best else -1, sound}
    for number in there:
        if number not in kept:
            _remove(folder / folder_name(number), number, steps)


def _is_finite(checkpoint: Path) -> bool:
    try:
        return read_manifest(checkpoint).finite
    except Damaged:
        return False


def sweep(folder: Path, upto: int | None = None, steps: Steps = unwatched) -> None:
    """Remove half-deleted checkpoints, and half-written ones with a number of at most ``upto``:
    another worker may already be writing its part of the next one."""
    scratch_of(folder / BEST).unlink(missing_ok=True)
    found = [(name, n) for name in _names(folder) if (n := leftover_number(name)) is not None]
    # Begin with half-deleted ones, which would block the deletion of the others.
    for name, number in sorted(found, key=lambda item: item[0] != removed_name(item[1])):
        if name == removed_name(number) or upto is None or number <= upto:
            _remove(folder / name, number, steps)


def _remove(path: Path, number: int, steps: Steps) -> None:
    hidden = path.with_name(removed_name(number))
    if path != hidden:
        steps(f"retire {path.name}")
        path.rename(hidden)
    steps(f"remove {path.name}")
    if hidden.is_symlink() or not hidden.is_dir():
        hidden.unlink()
    else:
        shutil.rmtree(hidden)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  (names are all that is needed)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"cannot read {folder}: {error.strerror}", "Check its permissions."
        ) from error
