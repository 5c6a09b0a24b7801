"""Decodes many ``tf.train.Example`` at once: NumPy walks through all records of a block in step.

A record is read here when it has the form that all writers give it: each message is one run of
bytes, and numbers are packed. All other records are read by :mod:`example_proto`, one by one, with
exactly the same results.

Fields of a message: a byte with number and type (0x0a, 0x12, 0x1a: fields 1, 2, 3, of a length and
so many bytes), the length as a varint (seven bits a byte, the lowest first; the top bit says that
another follows), the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view

from phalanx.data.blocks.block import Columns
from phalanx.data.blocks.example_proto import BYTES, FLOATS, INTS, Feature, parse, values_of

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
FIELDS = {BYTES: 0x0A, FLOATS: 0x12, INTS: 0x1A}
DTYPES: dict[str, Any] = {FLOATS: np.float32, INTS: np.int64}
FIRST, SECOND = 0x0A, 0x12
LENGTH_BYTES = 5
VARINT_BYTES = 10
MOST_FEATURES = 256
"""Records with more are read one by one."""


class RecordError(ValueError):
    """Why a record cannot be used; ``row`` counts from the first that was to be decoded."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


@dataclass
class Runs:
    """A run of bytes in each record: where each begins, and how long it is."""

    start: Places
    length: Places


class Walk:
    """Records at ``start`` to ``end`` of ``data``; ``regular`` says which could be followed."""

    def __init__(self, data: bytes, start: Places, end: Places) -> None:
        self._bytes = np.frombuffer(data, np.uint8)
        self._start, self._end = start, end
        self.regular: Flags = np.ones(len(start), np.bool_)

    def find(self, features: Sequence[Feature]) -> list[Runs]:
        """The values of each feature: packed numbers, or the one value of bytes."""
        found = [Runs(np.full_like(self._start, -1), np.zeros_like(self._start)) for _ in features]
        self._entries(features, found)
        for runs, feature in zip(found, features, strict=True):
            self.regular &= runs.start >= 0
            for field in (FIELDS[feature.kind], FIRST):  # of Feature, of the list in it
                end = runs.start + runs.length
                runs.start, runs.length = self._field(runs.start, field)
                self.regular &= runs.start + runs.length == end
            if feature.kind == FLOATS:
                self.regular &= runs.length == 4 * feature.values
            elif feature.kind == INTS:
                self.regular &= runs.length > 0
        return found

    def _entries(self, features: Sequence[Feature], found: list[Runs]) -> None:
        at, length = self._field(self._start, FIRST)
        self.regular &= at + length == self._end
        names = [np.frombuffer(feature.name.encode(), np.uint8) for feature in features]
        for _ in range(MOST_FEATURES):
            live = self.regular & (at < self._end)
            if not live.any():
                return
            # Records that are at their end must not be judged by the bytes after them.
            ended = self.regular & ~live
            entry, size = self._field(at, FIRST)
            key, key_size = self._field(entry, FIRST)
            value, value_size = self._field(key + key_size, SECOND)
            self.regular &= (value + value_size == entry + size) & (entry + size <= self._end)
            self.regular |= ended
            live &= self.regular
            for name, runs in zip(names, found, strict=True):
                same = live & (key_size == len(name))
                same[same] = self._equal(key[same], name)
                runs.start[same], runs.length[same] = value[same], value_size[same]
            at = np.where(live, entry + size, at)
        self.regular &= at >= self._end

    def _equal(self, at: Places, name: npt.NDArray[np.uint8]) -> Flags:
        if not len(name):
            return np.ones(len(at), np.bool_)
        same: Flags = (self._rows(at, len(name)) == name).all(axis=1)
        return same

    def _rows(self, at: Places, width: int) -> npt.NDArray[np.uint8]:
        if not len(at):  # then the data may be shorter than one row
            return np.empty((0, width), np.uint8)
        return sliding_window_view(self._bytes, width)[at]

    def _field(self, at: Places, field: int) -> tuple[Places, Places]:
        """Where the content of the field at ``at`` starts, and its length."""
        self.regular &= self._byte(at) == field
        at = at + 1
        byte = self._byte(at)
        length = byte & 0x7F
        more = np.flatnonzero(byte >= 0x80)
        at = at + 1
        for shift in range(7, 7 * LENGTH_BYTES, 7):
            if not len(more):
                break
            byte = self._byte(at[more])
            length[more] |= (byte & 0x7F) << shift
            at[more] += 1
            more = more[byte >= 0x80]
        self.regular[more] = False
        self.regular &= at + length <= self._end
        return at, length

    def _byte(self, at: Places) -> Places:
        # Records that have left the path may point anywhere.
        return self._bytes[np.minimum(at, len(self._bytes) - 1)].astype(np.int64)

    def numbers(self, runs: Runs, rows: Places, feature: Feature) -> npt.NDArray[Any] | None:
        """A row of values for each of ``rows``; ``None`` if a row has another number of values."""
        if not len(rows):
            return np.empty((0, feature.values), DTYPES[feature.kind])
        if feature.kind == FLOATS:
            return self._rows(runs.start[rows], 4 * feature.values).view("<f4")
        start, length = runs.start[rows], runs.length[rows]
        first = np.cumsum(length) - length
        flat = self._bytes[np.repeat(start - first, length) + np.arange(int(length.sum()))]
        last = flat < 0x80
        counts = np.add.reduceat(last, first, dtype=np.int64)
        if not last[first + length - 1].all() or not (counts == feature.values).all():
            return None
        ends = np.flatnonzero(last)
        begins = np.concatenate([[0], ends[:-1] + 1])
        sizes = ends - begins + 1
        if int(sizes.max()) > VARINT_BYTES:
            return None
        shifts = 7 * (np.arange(len(flat)) - np.repeat(begins, sizes))
        parts = (flat & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
        joined = np.bitwise_or.reduceat(parts, begins).view(np.int64)
        return joined.reshape(-1, feature.values)


def decode(data: bytes, start: Places, end: Places, features: Sequence[Feature]) -> Columns:
    """The records at ``start`` to ``end`` of ``data``, which all have these features."""
    walk = Walk(data, start, end)
    runs = walk.find(features)
    rows = np.flatnonzero(walk.regular)
    odd = {
        int(row): _parse(data[start[row] : end[row]], int(row), features)
        for row in np.flatnonzero(~walk.regular)
    }
    columns: Columns = {}
    for number, (feature, found) in enumerate(zip(features, runs, strict=True)):
        if feature.kind == BYTES:
            stop = (found.start + found.length).tolist()
            values = [data[a:b] for a, b in zip(found.start.tolist(), stop, strict=True)]
            for row, others in odd.items():
                values[row] = others[number][0]
            columns[feature.name] = values
            continue
        array = walk.numbers(found, rows, feature)
        if array is None:
            _refuse(data, start, end, features)
        if odd:
            whole = np.empty((len(start), feature.values), DTYPES[feature.kind])
            whole[rows] = array
            for row, others in odd.items():
                whole[row] = others[number]
            array = whole
        tensor = torch.from_numpy(array)
        columns[feature.name] = tensor[:, 0] if feature.values == 1 else tensor
    return columns


def _parse(record: bytes, row: int, features: Sequence[Feature]) -> list[list[Any]]:
    try:
        found = parse(record)
        return [values_of(found, feature) for feature in features]
    except ValueError as error:
        raise RecordError(row, str(error)) from error


def _refuse(data: bytes, start: Places, end: Places, features: Sequence[Feature]) -> NoReturn:
    """Read integers that do not fit one by one, to raise an error that names the record."""
    for row, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        _parse(data[a:b], row, features)
    raise AssertionError("one of the records has other integers")
