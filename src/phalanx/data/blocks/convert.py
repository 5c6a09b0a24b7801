"""Converts files from one format to another, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.core.files import replace_with
from phalanx.data.blocks.arrow import arrow
from phalanx.data.blocks.block import Columns
from phalanx.data.blocks.read import format_of, open_blocks

ROWS = 1 << 14
"""Rows of a written block: few enough to be shuffled with others, many enough to pay."""
Write = Callable[[Columns], None]


def convert(source: str, target: Path, *, report: Callable[[int, int], None]) -> int:
    """Write all rows of ``source`` into the file ``target``; returns how many.

    ``report``: called with the rows that are written, and all.
    """
    kind = format_of(target.name)
    if kind == "csv":
        raise InputError("CSV files are read, but not written", "Name a .parquet file instead.")
    if source.endswith(".npz"):
        total, columns = _arrays(Path(source))
    else:
        reader = open_blocks(source)
        total = sum(block.rows for block in reader.blocks)
        columns = (reader.read(block) for block in reader.blocks if block.rows)
    done = 0
    if not total:
        raise InputError(f"{source} has no rows", "Give other files.")
    with _one_line(target), replace_with(target) as file, _writer(kind, file) as write:
        for part in columns:
            rows = len(next(iter(part.values())))
            for first in range(0, rows, ROWS):
                write({name: column[first : first + ROWS] for name, column in part.items()})
                done += min(ROWS, rows - first)
                report(done, total)
    return done


@contextmanager
def _one_line(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InputError(
            f"cannot write {target}: {why}", "Check its folder and the free space there."
        ) from error
    except (arrow().ArrowException, ValueError, TypeError) as error:
        said = str(error).strip().partition("\n")[0]
        raise InputError(
            f"the blocks cannot all be written to {target}: {said}",
            "Give all files the same columns, types and shapes: phalanx data inspect --all FILES",
        ) from error


def _arrays(path: Path) -> tuple[int, Iterator[Columns]]:
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}", "Give a .npz file of numbers.") from error
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError(
            f"the arrays of {path} need the same number of rows, not {sorted(lengths)}",
            "Give each array one row per sample; convert train and test from two files.",
        )
    import torch

    return lengths.pop(), iter([{n: torch.from_numpy(a) for n, a in arrays.items()}])


@contextmanager
def _writer(kind: str, file: BinaryIO) -> Iterator[Write]:
    if kind == "tfrecord":
        from phalanx.data.blocks.tfrecord_writer import TFRecordWriter

        yield TFRecordWriter(file).write
        return
    new = arrow("pyarrow.parquet").ParquetWriter if kind == "parquet" else arrow().ipc.new_file
    with ExitStack() as opened:
        sink: Any = None

        def write(columns: Columns) -> None:
            nonlocal sink
            table = to_table(columns)
            sink = sink or opened.enter_context(new(file, table.schema))
            sink.write_table(table)

        yield write


def to_table(columns: Columns) -> Any:
    """Make an Arrow table; rows of several numbers become (nested) lists of fixed size."""
    pa = arrow()
    arrays = {}
    for name, column in columns.items():
        if not isinstance(column, Tensor):
            arrays[name] = pa.array(column)
            continue
        flat = pa.array(column.reshape(-1).numpy())
        for length in reversed(column.shape[1:]):
            flat = pa.FixedSizeListArray.from_arrays(flat, length)
        arrays[name] = flat
    return pa.table(arrays)
