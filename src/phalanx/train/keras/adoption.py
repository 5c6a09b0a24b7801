"""A Keras script that does not know of Phalanx: its ``model.fit`` is taken hold of.

Keras is imported by the script, after the worker has begun, with the backend that the script
chose; so its ``Model`` is changed at the end of that import.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from phalanx.core import settings
from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.train.keras.stand_ins import stand_in, tell_cluster


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module as everything else does, and has ``look`` see it when it is there."""

    def __init__(self, name: str, look: Callable[[ModuleType], None]) -> None:
        self._name, self._look = name, look

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def then_look(module: ModuleType) -> None:
                load(module)
                with suppress(ValueError):
                    sys.meta_path.remove(self)  # not before: some only ask whether it is there
                self._look(module)

            setattr(spec.loader, "exec_module", then_look)  # noqa: B010
        return spec


def adopt_keras() -> None:
    """Called before the script of a worker begins."""
    tell_cluster()
    for name, look in (("keras", adopt_fit), ("tensorflow", prepare_tensorflow)):
        if name in sys.modules:
            look(sys.modules[name])
        else:
            sys.meta_path.insert(0, _AfterImport(name, look))


def prepare_tensorflow(tensorflow: ModuleType) -> None:
    stand_in(tensorflow)
    seed_tensorflow(tensorflow)


def adopt_fit(keras: ModuleType) -> None:
    kind: Any = keras.Model
    plain = kind.fit

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        from phalanx.train.adopt.hooks import hand_over
        from phalanx.train.keras.fitting import shared_fit

        hand_over("model.fit of Keras")
        return shared_fit(self, plain.__get__(self), *args, **kwargs)

    kind.fit = fit
    if int(os.environ.get(settings.WORKERS, "1")) > 1:
        kind.train_on_batch = _refuse_batches


def _refuse_batches(model: Any, *args: Any, **kwargs: Any) -> Any:
    raise InputError(
        "the script calls model.train_on_batch, which Phalanx does not distribute",
        "Train with model.fit, with a train_step of your own where its step is special.",
    )


def seed_tensorflow(tensorflow: Any) -> None:
    """As Python, NumPy and torch are: all workers shuffle alike."""
    if settings.SETTINGS in os.environ:
        tensorflow.random.set_seed(RunSettings.from_json(os.environ[settings.SETTINGS]).seed)
