"""The manifest of a checkpoint, which describes it, and the names of its files.

``NNNNNN/`` holds ``shared.safetensors`` (what all workers have in common), ``rank-R.safetensors``
(what is a worker's own) and ``manifest.json``, which is written last and names them all.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from phalanx.core.files import TooLarge, read_bounded

FORMAT = 1
SHARED = "shared.safetensors"
MANIFEST = "manifest.json"
BEST = "best.json"
LARGEST_MANIFEST = 64 << 20  # bytes; enough for one record per parameter
LARGEST_NOTE = 1 << 16  # bytes of the small files beside the manifest

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_NUMBER = re.compile(r"[0-9]{6,15}")
_LEFTOVER = re.compile(r"\.([0-9]{6,15})\.(partial|removed)")


class FileRecord(msgspec.Struct, frozen=True):
    """The length of a file, and its checksum."""

    bytes: Count
    sha256: str


class PlaceRecord(msgspec.Struct, frozen=True):
    """Where one parameter lies in its flat buffer; a tied parameter has several names."""

    names: list[str]
    start: Count
    end: Count
    group: Count
    shape: list[Count]
    stride: list[Count]


class FlatLayout(msgspec.Struct, frozen=True):
    """All trained parameters of one dtype (``float32``), laid end to end."""

    dtype: str
    size: Count
    places: list[PlaceRecord]


class OptimizerLayout(msgspec.Struct, frozen=True):
    """The flat buffers of one optimizer."""

    kind: str
    layouts: list[FlatLayout]


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a checkpoint that is not a tensor."""

    format: int = FORMAT
    number: Count
    wall: float
    """The time when the checkpoint was taken, in seconds since 1970."""
    strategy: str
    workers: Count
    seed: int
    batch: Count
    samples: Count
    epochs: Count | None
    epoch: Count
    pass_number: Count
    position: Count
    """The number of samples of the pass that have been used."""
    phase: Count
    finite: bool = True
    """Whether all parameters are finite; otherwise ``newest_valid`` skips this checkpoint."""
    files: dict[str, FileRecord] = {}
    optimizers: list[OptimizerLayout]
    other: dict[str, Any] = {}


class BestRecord(msgspec.Struct, frozen=True):
    """Says which checkpoint is kept whatever its age, and why."""

    number: Count
    name: str
    value: float | None


class Damaged(Exception):  # noqa: N818  (a state of the file, not a mistake of the program)
    """A checkpoint that cannot be used; the text says what is wrong with it."""


class _Version(msgspec.Struct):
    format: int


folder_name = "{:06d}".format
partial_name = ".{:06d}.partial".format
"""The name of a folder in which a checkpoint is being written."""
removed_name = ".{:06d}.removed".format
"""The name of a folder while it is deleted: half a checkpoint never has a finished one's name."""
rank_file = "rank-{}.safetensors".format
RANK_FILE = re.compile(r"rank-[0-9]{1,9}\.safetensors")
delivery_note = "rank-{}.json".format
"""The note that tells the first worker that this worker's file is written."""
failure_note = "rank-{}.failed".format
"""The note that tells the first worker that this worker's file will not be written."""


def number_of(name: str) -> int | None:
    """Return the number of a finished checkpoint, from the name of its folder."""
    if not _NUMBER.fullmatch(name) or folder_name(int(name)) != name:
        return None
    return int(name)


def leftover_number(name: str) -> int | None:
    """Return the number of a checkpoint that is half written or half deleted."""
    found = _LEFTOVER.fullmatch(name)
    return int(found[1]) if found else None


def read_manifest(checkpoint: Path) -> CheckpointManifest:
    """Return the manifest of ``checkpoint``; raise ``Damaged`` if it is not a consistent one."""
    data = _bounded(checkpoint / MANIFEST)
    try:
        version = msgspec.json.decode(data, type=_Version).format
        if version != FORMAT:
            raise Damaged(f"it has format {version}, but this version reads {FORMAT} only")
        manifest = msgspec.json.decode(data, type=CheckpointManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = " ".join(str(error).split())[:120]
        raise Damaged(f"{MANIFEST} is damaged ({why})") from error
    # Only the file names of that many workers are allowed, so none leads out of the folder.
    if folder_name(manifest.number) != checkpoint.name:
        raise Damaged(f"{MANIFEST} is that of checkpoint {manifest.number}")
    # Compare the number of workers first: the names of a huge number of them must not be made.
    if len(manifest.files) != manifest.workers + 1 or manifest.files.keys() != {
        SHARED,
        *map(rank_file, range(manifest.workers)),
    }:
        raise Damaged(f"{MANIFEST} does not name the files of {manifest.workers} workers")
    return manifest


def _bounded(path: Path) -> bytes:
    try:
        if path.is_symlink() or not path.is_file():
            raise Damaged(f"{path.name} is missing")
        return read_bounded(path, LARGEST_MANIFEST)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from error
    except TooLarge as error:
        raise Damaged(f"{path.name} is damaged (too long)") from error
