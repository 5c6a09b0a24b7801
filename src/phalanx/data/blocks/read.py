"""``phalanx.data.read(URL)``: Parquet, Arrow, CSV and TFRecord, here or in remote storage."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from phalanx.core.errors import InputError
from phalanx.core.registry import Registry
from phalanx.data.blocks.block import BlockReader, Columns
from phalanx.data.blocks.block_data import BlockData, Decode, Form
from phalanx.data.blocks.files import find_files, is_remote
from phalanx.data.lazy import LoaderOptions
from phalanx.data.reader import Reader, TensorReader

FORMATS = Registry(
    "data format",
    {
        "parquet": "phalanx.data.blocks.arrow:ParquetReader",
        "arrow": "phalanx.data.blocks.arrow:ArrowReader",
        "csv": "phalanx.data.blocks.arrow:CsvReader",
        "tfrecord": "phalanx.data.blocks.tfrecord:TFRecordReader",
    },
)
SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow",
    ".ipc": "arrow", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrec": "tfrecord",
    ".csv": "csv",
}  # fmt: skip
WINDOW_BYTES = 64 << 20
"""Bytes of rows shuffled together; three windows are in memory while a fourth one is read."""
IN_MEMORY = 1 << 30
"""Data of up to that many bytes are shuffled as a whole; a fixed limit is alike everywhere."""

By = Literal["auto", "sample", "block"]


def read(
    url: str | Path | Sequence[str | Path] | Any,
    *,
    columns: Sequence[str] | None = None,
    decode: Decode | None = None,
    format: str | None = None,
    shuffle: bool = True,
    by: By = "auto",
    window: int | None = None,
    drop_last: bool = False,
) -> Reader:
    """The rows of a file, a folder, a pattern, a URL or a Hugging Face dataset, for
    ``run.batches`` and ``phalanx.fit``.

    A batch is a tuple of tensors, one for each of ``columns``; without them, a dictionary by name.
    ``decode`` turns the columns of a block (tensors, or lists of bytes) into tensors. ``by``:
    ``sample`` reads all into memory, ``block`` keeps a few blocks at a time; ``auto`` is ``sample``
    if all fits easily. ``window``: rows that are shuffled together.
    """
    if by not in get_args(By):
        raise InputError(f"read: unknown by={by!r}", f"Use one of: {', '.join(get_args(By))}.")
    if window is not None and (not isinstance(window, int) or window < 1):
        raise InputError(f"read: invalid window={window!r}", "Give a number of rows above 0.")
    found = open_blocks(url, columns=columns, format=format)
    form: Form = dict if columns is None else lambda read: tuple(read[name] for name in columns)
    data = BlockData(
        found, form=form, decode=decode, shuffle=shuffle, window=window or 1, drop_last=drop_last
    )
    first = data.read_block(data.blocks[0])
    if missing := [name for name in columns or () if name not in first]:
        raise InputError(
            f"decode returned no column {missing[0]!r}", f"It returned: {', '.join(first)}."
        )
    row_bytes = bytes_of_row(first)
    data.window = window or max(1, WINDOW_BYTES // row_bytes)
    whole = by == "sample" or (by == "auto" and fits_in_memory(len(data), row_bytes))
    return in_memory(data, form) if whole else data


def bytes_of_row(columns: Columns) -> int:
    """Roughly how many bytes a row of these data takes in memory."""
    total = 0
    for column in columns.values():
        values = [] if isinstance(column, torch.Tensor) else column
        total += getattr(column, "nbytes", 0) + sum(map(sys.getsizeof, values))
    return max(1, total // len(next(iter(columns.values()))))


def fits_in_memory(rows: int, row_bytes: int) -> bool:
    return rows * row_bytes <= IN_MEMORY


def open_blocks(
    url: Any, *, columns: Sequence[str] | None = None, format: str | None = None
) -> BlockReader:
    if (table := _table_of(url)) is not None:
        from phalanx.data.blocks.arrow import TableReader

        return TableReader({type(url).__name__: table}, columns)
    if columns is not None and not columns:
        raise InputError("read: columns= names none", "Name at least one, or leave it out.")
    urls = [url] if isinstance(url, str | Path) else list(url)
    sources = [source for one in urls for source in find_files(str(one), tuple(SUFFIXES))]
    seen = Counter(one if is_remote(one) else str(Path(one).resolve()) for one in sources)
    if twice := [source for source, count in seen.items() if count > 1]:
        raise InputError(f"{twice[0]} is given twice", "Give each file once.")
    kinds = {format or format_of(source) for source in sources}
    if len(kinds) > 1:
        raise InputError(f"{url} mixes {' and '.join(sorted(kinds))}", "Read one format at a time.")
    reader: BlockReader = FORMATS.get(kinds.pop())(sources, columns)
    return reader


def _table_of(data: Any) -> Any:
    """Arrow's table behind a Hugging Face dataset, if there is one."""
    if not hasattr(data, "data") or not hasattr(data.data, "table"):
        return None
    if getattr(data, "_indices", None) is not None:  # after shuffle, select or filter
        data = data.flatten_indices()
    return data.data.table


def format_of(source: str) -> str:
    name = source.rpartition("/")[2].removesuffix(".gz")
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix) or f"{suffix}-" in name:  # as in data.tfrecord-00001-of-00010
            return kind
    if name.endswith((".json", ".jsonl", ".txt")):
        raise InputError(
            f"{source}: only Parquet, Arrow, CSV and TFRecord files are read",
            "Write it as Parquet once, with pandas or pyarrow (pyarrow.json.read_json).",
        )
    raise InputError(
        f"the name of {source} does not show its format",
        f"Use a name that ends in {', '.join(SUFFIXES)}; or read(URL, format=…) in a script.",
    )


def in_memory(data: BlockData, form: Form) -> TensorReader:
    """All rows, in the order of the files."""
    parts = [data.read_block(block) for block in data.blocks]
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    options = LoaderOptions(shuffle=data.shuffle, drop_last=data.drop_last)
    return TensorReader(
        list(whole.values()), options=options,
        form=lambda rows: form(dict(zip(whole, rows, strict=True))),
    )  # fmt: skip
