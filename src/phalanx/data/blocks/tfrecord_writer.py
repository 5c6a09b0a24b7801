"""Writes columns to a TFRecord file of ``tf.train.Example``, which TensorFlow can also read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.files import replace_with
from phalanx.data.blocks.block import Columns
from phalanx.data.blocks.example_proto import BYTES, FLOATS, INTS, serialize
from phalanx.data.blocks.tfrecord import masked_crc

Values = Callable[[int], list[Any]]
"""The values of one row."""


class TFRecordWriter:
    """Appends rows.

    Numbers become 32-bit floats or 64-bit integers: the format has no others. A row of more than
    one dimension is written as a plain list.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._kinds: dict[str, str] | None = None

    def write(self, columns: Columns) -> None:
        rows = len(next(iter(columns.values())))
        if not rows:  # an empty list has no kind
            return
        ways = {name: _way(name, column) for name, column in columns.items()}
        kinds = {name: kind for name, (kind, _) in ways.items()}
        if self._kinds not in (None, kinds):
            raise InputError(
                f"the columns changed from {self._kinds} to {kinds}",
                "Write the same columns each time.",
            )
        self._kinds = kinds
        for row in range(rows):
            data = serialize((n, kind, values(row)) for n, (kind, values) in ways.items())
            length = struct.pack("<Q", len(data))
            self._file.write(b"".join((length, _crc(length), data, _crc(data))))


def write_tfrecord(path: str | Path, columns: Columns) -> None:
    with replace_with(Path(path)) as file:
        TFRecordWriter(file).write(columns)


def _way(name: str, column: Any) -> tuple[str, Values]:
    """The kind of a column's lists, and its values in each row."""
    if isinstance(column, Tensor):
        flat = column.detach().cpu().reshape(len(column), -1)
        if flat.is_floating_point():
            floats = flat.to(torch.float32).contiguous().numpy().astype("<f4", copy=False)
            return FLOATS, lambda row: [floats[row].tobytes()]
        if not flat.is_complex():
            integers = flat.to(torch.int64)
            return INTS, lambda row: integers[row].tolist()
    elif all(isinstance(value, bytes) for value in column):
        return BYTES, lambda row: [column[row]]
    elif all(isinstance(value, str) for value in column):
        return BYTES, lambda row: [column[row].encode()]
    raise InputError(
        f"the column '{name}' has values that a TFRecord file cannot hold",
        "Give a tensor of real numbers, or a list of bytes or text.",
    )


def _crc(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc(data))
