"""``tf.distribute`` in a Keras script that Phalanx distributes: stand-ins that do nothing.

A script makes a strategy, builds its model in the strategy's scope and scales its batch by the
number of replicas; all of that stays right, while ``model.fit`` is Phalanx' own.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from phalanx.core import settings
from phalanx.core.errors import InputError

_NAMES = (
    "Strategy", "MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy",
    "OneDeviceStrategy",
)  # fmt: skip
_EXPERIMENTAL = (
    "MultiWorkerMirroredStrategy", "ParameterServerStrategy", "CentralStorageStrategy",
)  # fmt: skip


class Resolver:
    """A cluster of one kind of task: this worker."""

    task_type = "worker"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.task_id = int(os.environ.get(settings.RANK, "0"))

    def cluster_spec(self) -> Any:
        import tensorflow as tf

        return tf.train.ClusterSpec({})


class StandInStrategy:
    """As many replicas as the run has workers."""

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
        """``fit`` shares it out."""
        return dataset


def tell_cluster() -> None:
    """Scripts multiply their batch by the number of workers that this variable lists."""
    workers = int(os.environ.get(settings.WORKERS, "1"))
    task = {"type": "worker", "index": int(os.environ.get(settings.RANK, "0"))}
    cluster = {"worker": [f"worker-{rank}:0" for rank in range(workers)]}
    os.environ.setdefault("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


def stand_in(tensorflow: Any) -> None:
    """Called when the script has imported TensorFlow."""
    os.environ["TF_USE_LEGACY_KERAS"] = "0"  # tf.keras is Keras 3
    distribute = tensorflow.distribute
    for owner, names in ((distribute, _NAMES), (distribute.experimental, _EXPERIMENTAL)):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, StandInStrategy)
    distribute.cluster_resolver.TFConfigClusterResolver = Resolver
