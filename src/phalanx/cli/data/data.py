"""``phalanx data``: inspect and convert files of data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import DONE, InputError

data_app = typer.Typer(
    help="Files of data: Parquet, Arrow, TFRecord.", no_args_is_help=True, rich_markup_mode=None
)


@data_app.command()
def inspect(
    url: Annotated[str, typer.Argument(metavar="URL", help="A file, folder, pattern or URL.")],
    all: Annotated[bool, typer.Option("--all", help="Read every block, not only one.")] = False,
    json: o.Json = False,
) -> int:
    """Show the columns, rows and blocks of data, and read some of it.

    Example: phalanx data inspect train.parquet
    """
    from phalanx.core.words import size
    from phalanx.data.blocks.read import bytes_of_row, fits_in_memory, open_blocks

    output, reader = Output(json), open_blocks(url)
    blocks = [block for block in reader.blocks if block.rows]
    if not blocks:
        raise InputError(f"there are no rows in {url}", "Give files that have rows.")
    first = reader.read(blocks[0])
    columns, row_bytes = {n: _kind(column) for n, column in first.items()}, bytes_of_row(first)
    for block in blocks[1:] if all else ():
        found = {name: _kind(column) for name, column in reader.read(block).items()}
        if found != columns:
            raise InputError(
                f"block {block.number} of {block.source} has other columns: {_words(found)}",
                f"Give all files the columns of {blocks[0].source}: {_words(columns)}.",
            )
    rows, files = sum(block.rows for block in blocks), {block.source for block in blocks}
    counts = {"file": len(files), "block": len(blocks), "row": rows}
    parts = [f"{number:,} {what}{'s' * (number != 1)}" for what, number in counts.items()]
    output.say(f"{', '.join(parts)}, about {size(rows * row_bytes)} in memory")
    for name, kind in columns.items():
        output.say(f"  {name}: {kind}")
    whole = fits_in_memory(rows, row_bytes)
    output.say(
        "read whole into memory, and shuffled as a whole" if whole
        else "read a few blocks at a time, and shuffled within them"
    )  # fmt: skip
    output.result({
        "files": len(files), "blocks": len(blocks), "rows": rows, "columns": columns,
        "row_bytes": row_bytes, "whole": whole,
    })  # fmt: skip
    return DONE


@data_app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Files to read, or a .npz file.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The file to write.")],
    json: o.Json = False,
) -> int:
    """Convert files of data. The name of DST gives the format: .parquet, .arrow or .tfrecord.

    Example: phalanx data convert train.tfrecord train.parquet
    """
    from phalanx.data.blocks.convert import convert as converted

    if target.exists():
        raise InputError(f"{target} already exists", "Give another name, or remove it first.")
    output = Output(json)
    with output.human.status("") as status:
        rows = converted(
            source, target,
            report=lambda done, total: status.update(f"{done:,} of {total:,} rows"),
        )  # fmt: skip
    output.say(f"{rows:,} rows written to {target}")
    output.result({"rows": rows, "file": str(target)})
    return DONE


def _kind(column: Any) -> str:
    shape = getattr(column, "shape", None)
    if shape is None:
        return f"{type(column[0]).__name__} (needs decode=)"
    dtype = str(column.dtype).removeprefix("torch.")
    return f"{dtype} {' x '.join(map(str, shape[1:]))}".rstrip()


def _words(columns: dict[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in columns.items())
