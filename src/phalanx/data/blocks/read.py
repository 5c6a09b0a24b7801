"""``phalanx.data.read(URL)``: Parquet, Arrow and TFRecord, here or in remote storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import psutil
import torch

from phalanx.core.errors import InputError
from phalanx.core.registry import Registry
from phalanx.data.blocks.block import Block, BlockReader, Columns
from phalanx.data.blocks.block_data import BlockData, Decode, Form
from phalanx.data.blocks.files import find_files
from phalanx.data.lazy import LoaderOptions
from phalanx.data.reader import Reader, TensorReader

FORMATS = Registry(
    "data format",
    {
        "parquet": "phalanx.data.blocks.arrow:ParquetReader",
        "arrow": "phalanx.data.blocks.arrow:ArrowReader",
        "tfrecord": "phalanx.data.blocks.tfrecord:TFRecordReader",
    },
)
SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow",
    ".ipc": "arrow", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrec": "tfrecord",
}  # fmt: skip
WINDOW_BYTES = 64 << 20
"""Rows that are shuffled together; three such windows are in memory, and one that is read."""
IN_MEMORY = 16
"""Data of up to that part of the machine's memory are read whole, and shuffled as a whole."""

By = Literal["auto", "sample", "block", "file"]


def read(
    url: str | Sequence[str] | Any,
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
    ``decode`` turns the columns of a block (tensors, or lists of bytes) into tensors.
    ``by``: ``sample`` reads all into memory, ``block`` and ``file`` keep a few at a time; ``auto``
    is ``sample`` for what fits easily. ``window``: rows that are shuffled together.
    """
    found = open_blocks(url, columns=columns, format=format)
    form: Form = dict if columns is None else lambda read: tuple(read[name] for name in columns)
    if by == "auto":
        by = "sample" if fits_in_memory(found) else "block"
    if by == "file":
        found = WholeFiles(found)
    chosen = window or max(1, WINDOW_BYTES // found.row_bytes)
    data = BlockData(
        found, form=form, decode=decode, shuffle=shuffle, window=chosen, drop_last=drop_last
    )
    return in_memory(data, form) if by == "sample" else data


def fits_in_memory(found: BlockReader) -> bool:
    rows = sum(block.rows for block in found.blocks)
    return rows * found.row_bytes * IN_MEMORY <= psutil.virtual_memory().total


def open_blocks(
    url: Any, *, columns: Sequence[str] | None = None, format: str | None = None
) -> BlockReader:
    if (table := _table_of(url)) is not None:
        from phalanx.data.blocks.arrow import TableReader

        return TableReader({type(url).__name__: table}, columns)
    urls = [url] if isinstance(url, str) else list(url)
    sources = [source for one in urls for source in find_files(one, tuple(SUFFIXES))]
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


class WholeFiles:
    """A block is a file."""

    def __init__(self, inner: BlockReader) -> None:
        self._inner = inner
        self._parts: dict[str, list[Block]] = {}
        for block in inner.blocks:
            self._parts.setdefault(block.source, []).append(block)
        self.row_bytes = inner.row_bytes
        self.blocks = [
            Block(source, 0, sum(part.rows for part in parts), parts[0].home)
            for source, parts in self._parts.items()
        ]

    def read(self, block: Block) -> Columns:
        parts = [self._inner.read(part) for part in self._parts[block.source]]
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(parts: Sequence[torch.Tensor | list[object]]) -> torch.Tensor | list[object]:
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if len(tensors) == len(parts):
        return torch.cat(tensors)
    return [value for part in parts for value in part]
