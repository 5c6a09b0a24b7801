"""Sends each worker's part of a checkpoint to the first worker, which stores the whole checkpoint.
That worker may send it on to a second machine, so that it survives the loss of the first one.

A parcel is one message: the checkpoint's number and the file's checksum, then the file's bytes. A
worker that cannot make its part sends a parcel without a checksum.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.train.checkpoint.checkpoint_manifest import MANIFEST, RANK_FILE, SHARED, FileRecord
from phalanx.train.checkpoint.disk import Steps, durable, unwatched
from phalanx.train.checkpoint.tensor_files import CHUNK, file_parts

if TYPE_CHECKING:
    from phalanx.sync.connect.channel import Channel


class NoParcel(Exception):  # noqa: N818  (what happened, not what went wrong here)
    """The part of a worker did not arrive; the text says why."""


class Label(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    number: int
    sha256: str
    """The checksum of the file; empty if the part could not be made."""
    file: str = ""
    """The file's name in a checkpoint that is sent whole."""


_decode = msgspec.msgpack.Decoder(Label).decode
_encode = msgspec.msgpack.Encoder().encode


def send(channel: Channel, number: int, tensors: Mapping[str, Tensor]) -> None:
    """Send the tensors as the file that ``write_tensors`` would write."""
    parts, digest = file_parts(tensors), hashlib.sha256()
    for part in parts:
        digest.update(part)
    channel.send(_encode(Label(number, digest.hexdigest())), *parts)


def send_failure(channel: Channel, number: int) -> None:
    channel.send(_encode(Label(number, "")))


def send_whole(channel: Channel, number: int, checkpoint: Path) -> None:
    """Send all files of a checkpoint, the manifest last."""
    for path in sorted(checkpoint.iterdir(), key=lambda path: path.name == MANIFEST):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            label = _encode(Label(number, digest, path.name))
            # Not closed here: if a send fails, its traceback still refers to the mapped bytes.
            content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            channel.send(label, memoryview(content))


def receive_whole(
    channel: Channel, number: int, partial: Path, end: float, steps: Steps = unwatched
) -> None:
    """Wait for the files of checkpoint ``number``, and write them into ``partial``."""
    file = ""
    while file != MANIFEST:
        label, size = _await(channel, number, end)
        if not label.sha256:
            raise NoParcel("has no checkpoint to send")
        file = label.file
        if file not in (MANIFEST, SHARED) and not RANK_FILE.fullmatch(file):
            channel.close()
            raise NoParcel("sent something else")
        _write(channel, label, size, partial / file, steps)


def receive(
    channel: Channel, number: int, path: Path, end: float, steps: Steps = unwatched
) -> FileRecord:
    """Wait for the part of checkpoint ``number``, at most until ``end``, and write it. Parts of
    earlier checkpoints, which were given up, are thrown away."""
    label, size = _await(channel, number, end)
    if not label.sha256:
        raise NoParcel("could not create its part")
    return _write(channel, label, size, path, steps)


def _await(channel: Channel, number: int, end: float) -> tuple[Label, int]:
    """Wait for the next parcel of ``number``; return its label and how many bytes follow it."""
    try:
        while channel.poll(max(0.0, end - time.monotonic())):
            header, size = channel.receive()
            label = _decode(header)
            if label.number == number:
                return label, size
            channel.skip(size)
            if label.number > number:
                raise NoParcel("sent a later part")
    except PeerLost as lost:
        raise _unreachable(lost) from None
    except msgspec.MsgspecError:
        channel.close()
        raise NoParcel("sent something else") from None
    raise NoParcel("sent no part in time")


def _unreachable(lost: PeerLost) -> NoParcel:
    return NoParcel(f"is not reachable any more ({lost.cause})")


def _write(channel: Channel, label: Label, size: int, path: Path, steps: Steps) -> FileRecord:
    digest, left, chunk = hashlib.sha256(), size, memoryview(bytearray(min(CHUNK, size)))
    try:
        with durable(path, steps) as file:
            while left:
                part = chunk[: min(left, len(chunk))]
                channel.receive_into(part)
                left -= len(part)
                digest.update(part)
                file.write(part)
    except PeerLost as lost:
        raise _unreachable(lost) from None
    except OSError:
        channel.skip(left)  # our disk failed, but the next message begins after these bytes
        raise
    if digest.hexdigest() != label.sha256:
        raise NoParcel("sent a damaged part")
    return FileRecord(size, label.sha256)
