"""What adoption found in a script, as the worker writes it down and the command line reads it."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec

FILE = "explanation.json"
Span = tuple[int, int, int, int]
"""First line and column, last line and column; lines from 1, columns in bytes, as in ``ast``."""


def span_of(node: ast.expr) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the script, and an expression there."""

    file: str
    line: int
    function: str = ""
    """Empty at the level of the module."""
    first: int = 0
    """The line where the function begins."""
    text: str = ""
    """Text of the expression."""
    span: Span | None = None


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    parameters: int
    name: str | None = None
    """What the script calls it."""
    place: Place | None = None


class FoundOptimizer(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    rate: float | None
    place: Place | None = None
    made: list[Place] = []
    """The script's own calls that led to it, the outermost first."""


class FoundData(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    samples: int
    batch: int
    batches: int
    shuffled: bool
    place: Place | None = None
    """Place of the loop; ``text`` is the loader as the loop names it, if that can be read."""
    library: str | None = None
    """The library whose loop it is, if not the script's own."""


class FoundStep(msgspec.Struct, frozen=True, kw_only=True):
    """Where the script updated its parameters."""

    optimizer: int
    place: Place | None = None
    """``text`` is the optimizer as the call names it, if that can be read."""
    scaler: bool = False
    """Whether it was ``scaler.step(optimizer)``."""
    closure: bool = False
    library: str | None = None


class CallingFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One of the script's functions around the loop, and what it calls models and optimizers."""

    place: Place
    models: list[str | None]
    optimizers: list[str | None]


class Explanation(msgspec.Struct, kw_only=True):
    script: str = ""
    complete: bool = False
    """Every optimizer has taken a step, or will not; else the script ended before."""
    joins: bool = False
    """The script calls Phalanx itself."""
    models: list[FoundModel] = []
    optimizers: list[FoundOptimizer] = []
    data: FoundData | None = None
    epochs: int | None = None
    loss: str | None = None
    """``mean``, ``sum``, ``weighted mean``, ``other``; ``None``: no backward pass was seen."""
    schedulers: list[str] = []
    evaluation: str = "every worker sees the whole evaluation set"
    differences: list[str] = []
    """What is not exactly as with one worker."""
    refused: list[str] = []
    """What several workers would refuse."""
    steps: list[FoundStep] = []
    callers: list[CallingFunction] = []
    """The outermost first."""

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(folder: Path) -> Explanation | None:
        try:
            return msgspec.json.decode((folder / FILE).read_bytes(), type=Explanation)
        except (OSError, msgspec.MsgspecError):
            return None
