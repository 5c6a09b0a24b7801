"""Defines what adoption found in a script: the worker writes it, the command line reads it."""

from __future__ import annotations

from pathlib import Path

import msgspec

FILE = "explanation.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the script."""

    file: str
    line: int
    function: str = ""
    """The function that the line is in; empty at the level of the module."""


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    parameters: int
    name: str | None = None
    """Its name in the script."""
    place: Place | None = None


class FoundOptimizer(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    rate: float | None
    place: Place | None = None


class FoundData(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    samples: int
    batch: int
    batches: int
    shuffled: bool
    place: Place | None = None
    """Where the loop is."""
    library: str | None = None
    """The library whose loop it is, if not the script's own."""


class Explanation(msgspec.Struct, kw_only=True):
    script: str = ""
    complete: bool = False
    """Whether every optimizer took a step or never will; if not, the script ended too early."""
    joins: bool = False
    """Whether the script calls Phalanx itself."""
    models: list[FoundModel] = []
    optimizers: list[FoundOptimizer] = []
    data: FoundData | None = None
    epochs: int | None = None
    loss: str | None = None
    """``mean``, ``sum``, ``weighted mean``, ``other``; ``None``: no backward pass was seen."""
    schedulers: list[str] = []
    evaluation: str = "every worker sees the whole evaluation set"
    differences: list[str] = []
    """In what the run differs from one with a single worker."""
    refused: list[str] = []
    """Parts of the script that a run with several workers refuses."""

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(folder: Path) -> Explanation | None:
        try:
            return msgspec.json.decode((folder / FILE).read_bytes(), type=Explanation)
        except (OSError, msgspec.MsgspecError):
            return None
