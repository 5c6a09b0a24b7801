"""A Keras script that does not know of Phalanx: Phalanx replaces ``model.fit``.

Keras is imported by the script, after the worker has begun, with the backend that the script
chose; so its ``Model`` is changed at the end of that import.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phalanx.core import settings
from phalanx.core.errors import InputError
from phalanx.core.script.import_hooks import HOOKS
from phalanx.core.settings import RunSettings
from phalanx.train.keras.stand_ins import stand_in, tell_cluster


def adopt_keras(hand_over: Callable[[], None]) -> None:
    """Called before the script of a worker begins; ``hand_over`` when it calls ``fit``."""
    tell_cluster()
    HOOKS.add("keras", functools.partial(adopt_fit, hand_over))
    HOOKS.add("tensorflow", prepare_tensorflow)


def prepare_tensorflow(tensorflow: ModuleType) -> None:
    stand_in(tensorflow)
    seed_tensorflow(tensorflow)


def adopt_fit(hand_over: Callable[[], None], keras: ModuleType) -> None:
    kind: Any = keras.Model
    plain = kind.fit

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        from phalanx.train.keras.fitting import shared_fit

        if RunSettings.from_json(os.environ.get(settings.SETTINGS, "{}")).explain:
            from phalanx.train.keras.explaining import explain_fit

            explain_fit(self, plain.__get__(self), *args, **kwargs)
        hand_over()
        return shared_fit(self, plain.__get__(self), *args, **kwargs)

    kind.fit = fit
    if int(os.environ.get(settings.WORKERS, "1")) > 1:
        kind.train_on_batch = _refuse_batches


def _refuse_batches(model: Any, *args: Any, **kwargs: Any) -> Any:
    raise InputError(
        "the script calls model.train_on_batch, which Phalanx does not distribute",
        "Use model.fit; a special step goes into the train_step of your model.",
    )


def seed_tensorflow(tensorflow: Any) -> None:
    """As Python, NumPy and torch are: all workers shuffle alike."""
    if settings.SETTINGS in os.environ:
        tensorflow.random.set_seed(RunSettings.from_json(os.environ[settings.SETTINGS]).seed)


def join(model: Any) -> None:
    """``phalanx.keras.join``: ``model.fit`` then trains on all the workers of the run; alone, it
    trains here as ever."""
    from phalanx.train.keras.fitting import shared_fit
    from phalanx.train.start.environment import detect

    if (hooks := sys.modules.get("phalanx.train.adopt.torch_patches")) is not None:
        hooks.end_adoption()
    environment = detect()
    if not environment.launched and environment.workers == 1:
        return  # plain Python
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        seed_tensorflow(tensorflow)
    plain = type(model).fit.__get__(model)
    object.__setattr__(model, "fit", functools.partial(shared_fit, model, plain))
