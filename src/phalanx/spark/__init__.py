"""Training from Spark: an ``Estimator`` for ``pyspark.ml``, with workers beside Spark's tasks.

The code of the driver, of a barrier task and of a worker's process, and the fitted model as a
transformer. How workers train is in ``phalanx.train``. The process of a worker imports
no ``pyspark``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.spark.building import trust
    from phalanx.spark.estimator import Estimator
    from phalanx.spark.transformer import Model

__all__ = ["Estimator", "Model", "trust"]
_PLACES = {"Estimator": "estimator", "Model": "transformer", "trust": "building"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'phalanx.spark' has no attribute '{name}'")
    return getattr(importlib.import_module(f"phalanx.spark.{_PLACES[name]}"), name)
