"""Phalanx trains one model on many unlike machines, and says whether it was worth it.

A training script needs only ``fit`` or ``join``; ``data`` has ready-made sources; ``watch`` shows a
run in a notebook.
These names are loaded when first used, so that the command line starts without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phalanx.core.version import __version__

if TYPE_CHECKING:
    from phalanx import data
    from phalanx.train.api.fit import fit
    from phalanx.train.api.join import join
    from phalanx.train.api.run import Run
    from phalanx.train.figures.model_calls import accuracy
    from phalanx.watch.notebook import show as watch

__all__ = ["Run", "__version__", "accuracy", "data", "fit", "join", "watch"]

_LAZY = {
    "fit": "phalanx.train.api.fit",
    "join": "phalanx.train.api.join",
    "accuracy": "phalanx.train.figures.model_calls",
    "Run": "phalanx.train.api.run",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "watch"):  # ``watch`` is a module that can be called
        return importlib.import_module(f"phalanx.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'phalanx' has no attribute '{name}'")
