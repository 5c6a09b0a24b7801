"""``phalanx.keras.join(model)``: plain ``model.fit`` then trains on all the workers of the run."""

from __future__ import annotations

import functools
import sys
from typing import Any

from phalanx.train.keras.adoption import seed_tensorflow
from phalanx.train.keras.fitting import shared_fit
from phalanx.train.start.environment import detect


def join(model: Any) -> None:
    """Let ``model.fit`` train on all the workers of the run; alone, it trains here as ever."""
    if (hooks := sys.modules.get("phalanx.train.adopt.hooks")) is not None:
        hooks.end_adoption()
    environment = detect()
    if not environment.launched and environment.workers == 1:
        return  # plain Python
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        seed_tensorflow(tensorflow)
    plain = type(model).fit.__get__(model)
    object.__setattr__(model, "fit", functools.partial(shared_fit, model, plain))
