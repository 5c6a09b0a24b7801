"""Finds out who calls: the script, a library, or Phalanx.

The newest frame decides, but the standard library, and libraries that write where they are asked
to, count as the code that called them.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import sysconfig
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Literal

Caller = Literal["script", "library", "ours"]

OURS = str(Path(__file__).parents[3])
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/")
_FOR_OTHERS = (
    "PIL/",
    "fsspec/",
    "imageio/",
    "joblib/",
    "lightning/",
    "lightning_fabric/",
    "matplotlib/",
    "numpy/",
    "pandas/",
    "pytorch_lightning/",
    "torchvision/utils.py",
    "transformers/",
)


def caller_of(frame: FrameType) -> Caller:
    kinds = (kind_of(one.f_code.co_filename) for one, _ in walk_stack(frame))
    return next(filter(None, kinds), "library")


@functools.cache
def kind_of(file: str) -> Caller | None:
    """Return who owns the code of a file; ``None`` if it counts as its caller's."""
    if file.startswith(OURS):
        return "ours"
    if file.startswith("<"):  # importing does nothing to the script's files
        return "library" if file.startswith("<frozen importlib") else None
    for folder in _INSTALLED:
        if folder in file:
            return None if file.rpartition(folder)[2].startswith(_FOR_OTHERS) else "library"
    return None if file.startswith(_STANDARD) else "script"


_PEEK = re.compile(r"\bnext\s*\(\s*iter\s*\(")


def script_frame() -> FrameType | None:
    """Return the newest frame that is not of Phalanx."""
    stack = (frame for frame, _ in walk_stack(sys._getframe(1)))
    return next((f for f in stack if not f.f_code.co_filename.startswith(OURS)), None)


def is_peek(frame: FrameType | None) -> bool:
    """Whether the call only looks at a first batch: ``next(iter(loader))``."""
    if frame is None:
        return False
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    return bool(_PEEK.search(line))
