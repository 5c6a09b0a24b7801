"""What both TensorFlow systems share: the model, the data and the threads."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Keras 3 fails under MultiWorkerMirrored
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers.turns import BATCH, CLASSES, FEATURES, STEPS

RATE = 0.05


def limit_threads() -> None:
    """One thread for operators, as everybody has; more between them, else receiving blocks."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("TF_INTER", "2")))


def make_model() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.InputLayer((FEATURES,)),
            layers.Dense(300, activation="relu"),
            layers.Dense(100, activation="relu"),
            layers.Dense(10),
        ]
    )


def make_loss(**options: Any) -> Any:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def make_optimizer() -> Any:
    return tf.keras.optimizers.SGD(RATE)


def make_batches(workers: int) -> Any:
    """This worker's batches, cut beforehand and endless: no work is left but to take one.

    Made where they are used: numpy arrays would be a part of the graph, and be sent with it.
    """
    batch = BATCH // workers
    x = tf.random.stateless_normal((STEPS, batch, FEATURES), seed=(0, 0))
    y = tf.random.stateless_uniform((STEPS, batch), (0, 1), 0, CLASSES, tf.int64)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat()
