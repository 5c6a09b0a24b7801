"""A Keras script that does not know of Phalanx: Phalanx replaces ``model.fit``.

Keras is imported by the script, after the worker has begun, with the backend that the script
chose; so its ``Model`` is changed at the end of that import. ``tf.distribute`` gets stand-ins that
do nothing: a script that builds its model in a strategy's scope and scales its batch by the number
of replicas stays right.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from phalanx.core import settings
from phalanx.core.errors import InputError
from phalanx.core.script.import_hooks import HOOKS
from phalanx.core.settings import RunSettings


def adopt_keras(hand_over: Callable[[], None]) -> None:
    """Begin adoption before a worker's script; ``hand_over`` is called when it calls ``fit``."""
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
    """Seed TensorFlow as Python, NumPy and torch are, so that all workers shuffle alike."""
    if settings.SETTINGS in os.environ:
        tensorflow.random.set_seed(RunSettings.from_json(os.environ[settings.SETTINGS]).seed)


def join(model: Any) -> None:
    """Let ``model.fit`` train on all the workers of the run (``phalanx.keras.join``). Alone, it
    trains here as ever."""
    from phalanx.train.keras.fitting import shared_fit
    from phalanx.train.start.environment import detect

    if (hooks := sys.modules.get("phalanx.train.adopt.torch_patches")) is not None:
        hooks.end_adoption()
    environment = detect()
    if not environment.launched and environment.workers == 1:
        return  # it is plain Python
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        seed_tensorflow(tensorflow)
    plain = type(model).fit.__get__(model)
    object.__setattr__(model, "fit", functools.partial(shared_fit, model, plain))


_NAMES = (
    "Strategy", "MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy",
    "OneDeviceStrategy",
)  # fmt: skip
_EXPERIMENTAL = (
    "MultiWorkerMirroredStrategy", "ParameterServerStrategy", "CentralStorageStrategy",
)  # fmt: skip


class Resolver:
    """Describes a cluster with one kind of task, which is this worker."""

    task_type = "worker"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.task_id = int(os.environ.get(settings.RANK, "0"))

    def cluster_spec(self) -> Any:
        import tensorflow as tf

        return tf.train.ClusterSpec({})


class StandInStrategy:
    """Stands in for a TensorFlow strategy, with as many replicas as the run has workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.num_replicas_in_sync = int(os.environ.get(settings.WORKERS, "1"))
        self.cluster_resolver = Resolver()
        self.extended = self

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        raise InputError(
            f"the script has its own training loop: it uses {name} of its tf.distribute strategy",
            "Phalanx distributes only model.fit; --framework tensorflow runs such scripts.",
        )

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return ``dataset`` as it is, because ``fit`` shares it out."""
        return dataset


def tell_cluster() -> None:
    """Set ``TF_CONFIG``: scripts multiply their batch by the number of workers in it."""
    workers = int(os.environ.get(settings.WORKERS, "1"))
    task = {"type": "worker", "index": int(os.environ.get(settings.RANK, "0"))}
    cluster = {"worker": [f"worker-{rank}:0" for rank in range(workers)]}
    os.environ.setdefault("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


def stand_in(tensorflow: Any) -> None:
    """Replace parts of TensorFlow, which the script has just imported."""
    os.environ["TF_USE_LEGACY_KERAS"] = "0"  # because tf.keras is Keras 3
    distribute = tensorflow.distribute
    for owner, names in ((distribute, _NAMES), (distribute.experimental, _EXPERIMENTAL)):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, StandInStrategy)
    distribute.cluster_resolver.TFConfigClusterResolver = Resolver
