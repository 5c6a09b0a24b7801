"""Defines a block of rows, and the interface of its readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Columns = dict[str, Any]
"""Columns by name: a tensor with one row per sample, or a list if there is no tensor form (bytes).
"""


@dataclass(frozen=True)
class Block:
    """Rows that are read at once: a row group, a range of records, a batch of Spark."""

    source: str
    """The path or URL of its file."""
    number: int
    """Number of the block in that file."""
    rows: int
    home: int | None = None
    """The only worker that can read it, if not all can."""


class BlockReader(Protocol):
    @property
    def blocks(self) -> Sequence[Block]: ...

    def read(self, block: Block) -> Columns: ...
