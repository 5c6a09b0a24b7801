"""Columns to a TFRecord file of ``tf.train.Example``, which TensorFlow reads as well."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.data.blocks.block import Columns
from phalanx.data.blocks.example_proto import BYTES, FLOATS, INTS, serialize
from phalanx.data.blocks.tfrecord import masked_crc

Values = Callable[[int], list[Any]]
"""Of one row."""


class TFRecordWriter:
    """Appends rows. The file has its name only once it is whole.

    Numbers become 32-bit floats or 64-bit integers: the format has no others. A row of more than
    one dimension is written as a plain list.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        self._kinds: dict[str, str] | None = None
        try:
            self._file = self._part.open("wb")
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def write(self, columns: Columns) -> None:
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            found = ", ".join(f"{name}: {some:,}" for name, some in lengths.items())
            raise InputError(
                f"the columns for {self._path} have different numbers of rows ({found or 'none'})",
                "Give all columns the same number of rows.",
            )
        rows = next(iter(lengths.values()))
        if not rows:  # an empty list has no kind
            return
        ways = {name: _way(name, column) for name, column in columns.items()}
        kinds = {name: kind for name, (kind, _) in ways.items()}
        if self._kinds not in (None, kinds):
            raise InputError(
                f"the columns for {self._path} changed from {self._kinds} to {kinds}",
                "Write the same columns each time.",
            )
        self._kinds = kinds
        for row in range(rows):
            self._append(serialize((n, kind, values(row)) for n, (kind, values) in ways.items()))

    def _append(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        parts = (length, _crc(length), data, _crc(data))
        try:
            self._file.write(b"".join(parts))
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        try:
            self._file.close()
            self._part.replace(self._path)
        except OSError as error:
            self._part.unlink(missing_ok=True)
            raise _unwritable(self._path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        self._file.close()
        self._part.unlink(missing_ok=True)


def write_tfrecord(path: str | Path, columns: Columns) -> None:
    with TFRecordWriter(path) as writer:
        writer.write(columns)


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


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write {path}: {error.strerror or error}", "Check the folder and its free space."
    )
