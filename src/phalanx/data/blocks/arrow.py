"""Parquet, Arrow and CSV files, straight to tensors: a row group or a record batch is a block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from phalanx.core.errors import InputError
from phalanx.data.blocks.block import Block, Columns
from phalanx.data.blocks.files import is_remote, open_file, package

MOST_ROWS = 1 << 16
"""Rows of a block of Arrow, at most: whole chunks may be large."""
_MAGIC = b"ARROW1"
_GZIP = b"\x1f\x8b"
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)


def arrow(name: str = "pyarrow") -> Any:
    return package(name, "Parquet, Arrow and CSV files")


class ParquetReader:
    def __init__(self, sources: Sequence[str], columns: Sequence[str] | None) -> None:
        self._columns = columns
        self._metadata: dict[str, Any] = {}
        for source in sources:
            file = self._open(source)
            self._metadata[source] = file.metadata
            _check_columns(source, file.schema_arrow.names, columns)
        self.blocks = [
            Block(source, number, found.row_group(number).num_rows)
            for source, found in self._metadata.items()
            for number in range(found.num_row_groups)
        ]

    def _open(self, source: str) -> Any:
        pq = arrow("pyarrow.parquet")

        file = open_file(source) if is_remote(source) else source
        with _named(source):
            return pq.ParquetFile(file, metadata=self._metadata.get(source))

    def read(self, block: Block) -> Columns:
        with _named(block.source):
            file = self._open(block.source)
            table = file.read_row_group(block.number, columns=self._columns, use_threads=False)
        return to_columns(table, block.source)


class TableReader:
    """A table of Arrow in memory, or mapped into it; its chunks are the blocks."""

    def __init__(self, tables: dict[str, Any], columns: Sequence[str] | None) -> None:
        self._batches: dict[tuple[str, int], Any] = {}
        for source, table in tables.items():
            _check_columns(source, table.column_names, columns)
            chosen = table if columns is None else table.select(list(columns))
            for number, batch in enumerate(chosen.to_batches(max_chunksize=MOST_ROWS)):
                self._batches[source, number] = batch
        self.blocks = [Block(*key, batch.num_rows) for key, batch in self._batches.items()]

    def read(self, block: Block) -> Columns:
        pa = arrow()

        batch = self._batches[block.source, block.number]
        return to_columns(pa.Table.from_batches([batch]), block.source)


class ArrowReader(TableReader):
    """Reads Arrow's files, also those of Hugging Face datasets; maps them into memory if it can."""

    def __init__(self, sources: Sequence[str], columns: Sequence[str] | None) -> None:
        super().__init__({source: _mapped(source) for source in sources}, columns)


class CsvReader(TableReader):
    """Text with the names of the columns in its first line; also compressed by gzip.

    All of it is in memory, because only a reader of all lines knows where each one begins. A column
    has one type in all files, which all its values fit.
    """

    def __init__(self, sources: Sequence[str], columns: Sequence[str] | None) -> None:
        tables = {source: _parsed(source, columns) for source in sources}
        with _named(sources[0]):
            found = [table.schema for table in tables.values()]
            schema = arrow().unify_schemas(found, promote_options="permissive")
        for source, table in tables.items():
            _check_columns(source, table.column_names, schema.names)
            with _named(source):
                tables[source] = table.select(schema.names).cast(schema)
        super().__init__(tables, columns)


def _parsed(source: str, columns: Sequence[str] | None) -> Any:
    pa, csv = arrow(), arrow("pyarrow.csv")

    how = csv.ParseOptions(newlines_in_values=True)
    with _named(source), open_file(source) as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        table = csv.read_csv(pa.CompressedInputStream(file, "gzip") if packed else file, None, how)
    names = table.column_names
    counted = names == [str(number) for number in range(len(names))]  # as pandas counts columns
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if numbers and not counted:
        raise InputError(
            f"the first line of {source} names no columns: it has the value {numbers[0]}",
            "Write a line with a name for each column before it.",
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{source} has two columns {twice[0]!r}", "Name each column once.")
    _check_columns(source, names, columns)
    return table if columns is None else table.select(list(columns))


def _mapped(source: str) -> Any:
    pa = arrow()

    with _named(source):
        file = pa.PythonFile(open_file(source)) if is_remote(source) else pa.memory_map(source)
        is_stream = file.read(len(_MAGIC)) != _MAGIC
        file.seek(0)
        return (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(file).read_all()


@contextmanager
def _named(source: str) -> Iterator[None]:
    """An error with the file's name for what Arrow says of a file that it cannot read."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"there is no file {source}", "Check the path.") from error
    except (arrow().ArrowException, OSError) as error:
        raise InputError(
            f"cannot read {source}: {str(error).partition(chr(10))[0]}",
            "It may be damaged or in another format: copy or write the file again.",
        ) from error


def _check_columns(source: str, there: Sequence[str], wanted: Sequence[str] | None) -> None:
    missing = [name for name in wanted or () if name not in there]
    if missing:
        raise InputError(
            f"{source} has no column {missing[0]!r}", f"It has {', '.join(map(str, there))}."
        )


def to_columns(table: Any, source: str) -> Columns:
    return {
        name: _column(table.column(name).combine_chunks(), name, source)
        for name in table.column_names
    }


def _column(array: Any, name: str, source: str) -> Any:
    pa, kinds = arrow(), arrow("pyarrow.types")

    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks != 1 else array.chunk(0)
    if array.null_count:
        raise InputError(
            f"column {name!r} of {source} has {array.null_count} nulls", "Fill or drop them first."
        )
    kind = array.type
    if kinds.is_fixed_size_list(kind):
        inner = _column(array.flatten(), name, source)
        if not isinstance(inner, torch.Tensor):
            return array.to_pylist()
        return inner.view(len(array), kind.list_size, *inner.shape[1:])
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _equal_lists(array, name, source)
    if kinds.is_fixed_size_binary(kind):
        start = array.offset * kind.byte_width
        whole = np.frombuffer(array.buffers()[1], np.uint8, len(array) * kind.byte_width, start)
        return torch.from_numpy(whole.reshape(len(array), kind.byte_width).copy())
    if kinds.is_boolean(kind):
        return torch.from_numpy(array.to_numpy(zero_copy_only=False))
    if kinds.is_integer(kind) or kinds.is_floating(kind):
        if kind in (pa.uint16(), pa.uint32(), pa.uint64()):  # types of which torch supports little
            values = array.to_numpy()
            if len(values) and int(values.max()) >= 1 << 63:
                raise InputError(
                    f"column {name!r} of {source} has integers of 2^63 and more",
                    "torch has none so large: write the column as other numbers, or leave it out.",
                )
            return torch.from_numpy(values.astype(np.int64))
        return torch.utils.dlpack.from_dlpack(array)  # without a copy
    return array.to_pylist()


def _equal_lists(array: Any, name: str, source: str) -> Any:
    lengths = np.diff(array.offsets.to_numpy())
    inner = _column(array.flatten(), name, source)
    if not isinstance(inner, torch.Tensor) or (len(lengths) and (lengths != lengths[0]).any()):
        return array.to_pylist()
    return inner.view(len(array), int(lengths[0]) if len(lengths) else 0, *inner.shape[1:])
