"""TFRecord files of ``tf.train.Example``, without TensorFlow: a range of records is a block.

A compressed file is one block: it cannot be read from its middle.

A record: its length in 8 bytes, the masked CRC-32C of these, the data, the masked CRC-32C of the
data; all little-endian. The format has no index, so the reader makes one by reading all lengths.
"""

from __future__ import annotations

import contextlib
import gzip
import mmap
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.core.errors import InputError
from phalanx.data.blocks.block import Block, Columns
from phalanx.data.blocks.example_proto import BYTES, Feature, parse
from phalanx.data.blocks.example_wire import RecordError, decode
from phalanx.data.blocks.files import is_remote, open_file, package, read_range, size_of

HEADER, FOOTER = 12, 4
LONGEST = (1 << 31) - 1
"""Bytes of a record; protobuf reads no more."""
SCAN_BYTES = 4 << 20
"""Bytes that are read at once of a remote file, for its index."""
GZIP = b"\x1f\x8b"
COMPRESSED = (GZIP, b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
Places = npt.NDArray[np.int64]
AGAIN = "Copy or write the file again."


@dataclass(frozen=True)
class Span:
    """Where a block is in its file, and the number of its first record there."""

    start: int
    end: int
    first: int
    compressed: bool = False


class TFRecordReader:
    """Reads TFRecord files; all records have the first one's features, or those in ``columns``."""

    def __init__(
        self,
        sources: Sequence[str],
        columns: Sequence[str] | None = None,
        block_rows: int = 4096,
        block_bytes: int = 8 << 20,
    ) -> None:
        self.blocks: list[Block] = []
        self._spans: dict[tuple[str, int], Span] = {}
        for source in sources:
            packed = _is_compressed(source)
            found = _whole(source) if packed else _index(source, block_rows, block_bytes)
            for number, (span, rows) in enumerate(found):
                self.blocks.append(Block(source, number, rows))
                self._spans[source, number] = span
        if not self.blocks:
            raise InputError(f"there are no records in {', '.join(sources)}", AGAIN)
        self.features = self._features(columns)

    def read(self, block: Block) -> Columns:
        span = self._spans[block.source, block.number]
        data, start, end = self._data(block)
        try:
            return decode(data, start, end, self.features)
        except RecordError as error:
            raise _unusable(block.source, span.first + error.row, str(error)) from error

    def _data(self, block: Block) -> tuple[bytes, Places, Places]:
        """The bytes of a block, and where the data of each record start and end."""
        span = self._spans[block.source, block.number]
        if span.compressed:
            data = _decompressed(block.source)
        else:
            data = read_range(block.source, span.start, span.end - span.start)
        start, end = _records(data, block, span)
        _check_data(data, start, end, block.source, span.start)
        return data, start, end

    def _features(self, columns: Sequence[str] | None) -> list[Feature]:
        source = self.blocks[0].source
        data, start, end = self._data(self.blocks[0])
        try:
            found = parse(data[start[0] : end[0]])
        except ValueError as error:
            raise _unusable(source, 0, str(error)) from error
        names = sorted(found) if columns is None else list(columns)
        for name in names:
            if name not in found:
                has = ", ".join(sorted(found)) or "none"
                raise InputError(f"{source} has no feature '{name}'", f"Its features are {has}.")
        if not names:
            raise _unusable(source, 0, "it has no features")
        return [_feature(source, name, *found[name]) for name in names]


def _feature(source: str, name: str, kind: str, values: Any) -> Feature:
    if not len(values):
        raise _unusable(source, 0, f"its feature '{name}' has no values")
    if kind == BYTES and len(values) > 1:
        raise _unusable(source, 0, f"its feature '{name}' has more than one byte string")
    return Feature(name, kind, len(values))


def _index(source: str, block_rows: int, block_bytes: int) -> Iterator[tuple[Span, int]]:
    """The blocks of a file, each with its number of rows."""
    start = first = rows = end = 0
    for end in _ends(source):
        rows += 1
        if rows >= block_rows or end - start >= block_bytes:
            yield Span(start, end, first), rows
            start, first, rows = end, first + rows, 0
    if rows:
        yield Span(start, end, first), rows


def _whole(source: str) -> Iterator[tuple[Span, int]]:
    data = _decompressed(source)
    if rows := sum(1 for _ in _ends(source, data)):
        yield Span(0, len(data), 0, compressed=True), rows


def _is_compressed(source: str) -> bool:
    """A plain file may begin with the same bytes, but then with a length that they fit."""
    start = read_range(source, 0, min(HEADER, size_of(source)))
    plain = len(start) == HEADER and masked_crc(start[:8]) == int.from_bytes(start[8:], "little")
    return start.startswith(COMPRESSED) and not plain


def _decompressed(source: str) -> bytes:
    data = read_range(source, 0, size_of(source))
    try:
        return gzip.decompress(data) if data.startswith(GZIP) else zlib.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"cannot decompress {source}: {error}", AGAIN) from error


def _ends(source: str, whole: bytes | None = None) -> Iterator[int]:
    """The byte after each record. Lengths are checked here before anything is read by them.

    ``whole``: what a compressed file holds."""
    crc32c = _crc32c()
    unpack = struct.Struct("<QI").unpack_from
    size, at, offset = size_of(source) if whole is None else len(whole), 0, 0
    with _mapped(source, size) if whole is None else contextlib.nullcontext(whole) as data:
        while at < size:
            left = size - at - HEADER - FOOTER
            if left < 0:
                raise _damaged(source, at, f"the file ends inside a record, at byte {size:,}")
            if at + HEADER > offset + len(data):
                offset, data = at, read_range(source, at, min(SCAN_BYTES, size - at))
            place = at - offset
            length, crc = unpack(data, place)
            if crc != _mask(crc32c(data[place : place + 8])):
                raise _damaged(source, at, "the checksum of the record's length is wrong")
            if length > min(left, LONGEST):
                why = f"the record should have {length:,} bytes, but {left:,} are left"
                raise _damaged(source, at, why if length > left else "the record is over 2 GB")
            at += HEADER + length + FOOTER
            yield at


@contextlib.contextmanager
def _mapped(source: str, size: int) -> Iterator[Any]:
    """A file on this machine, of which only the pages with headers are then read."""
    if is_remote(source) or not size:
        yield b""
        return
    with open_file(source) as file:
        try:
            found = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {source}: {error}", AGAIN) from error
        with found:
            yield found


def _records(data: bytes, block: Block, span: Span) -> tuple[Places, Places]:
    """Where the data of each record start and end."""
    unpack, size = struct.Struct("<Q").unpack_from, len(data)
    at, starts, ends = 0, [], []
    while at + HEADER + FOOTER <= size:
        (length,) = unpack(data, at)
        at += HEADER
        starts.append(at)
        at += length
        ends.append(at)
        at += FOOTER
    if at != size or len(starts) != block.rows:
        raise _damaged(block.source, span.start, "the file has changed since it was opened")
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _check_data(data: bytes, start: Places, end: Places, source: str, offset: int) -> None:
    crc32c, view = _crc32c(), memoryview(data)
    pairs = zip(start.tolist(), end.tolist(), strict=True)
    found = np.array([crc32c(view[a:b]) for a, b in pairs], np.uint64)
    written = np.frombuffer(data, np.uint8)[end[:, None] + np.arange(FOOTER)].view("<u4")[:, 0]
    wrong = np.flatnonzero(_mask(found) != written)
    if len(wrong):
        at = offset + int(start[wrong[0]]) - HEADER
        raise _damaged(source, at, "the checksum of the record's data is wrong")


def masked_crc(data: bytes) -> int:
    return int(_mask(_crc32c()(data)))


def _mask(crc: Any) -> Any:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c() -> Any:
    return package("crc32c", "TFRecord files").crc32c


def _damaged(source: str, at: int, why: str) -> InputError:
    return InputError(f"{source} is damaged or not a TFRecord file, at byte {at:,}: {why}", AGAIN)


def _unusable(source: str, record: int, why: str) -> InputError:
    """``record`` counts from 0; users count from 1."""
    return InputError(
        f"cannot read record {record + 1:,} of {source}: {why}",
        "Columns need one type and number of values in all records; columns=(…) reads only some.",
    )
