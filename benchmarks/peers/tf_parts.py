"""What both TensorFlow systems share: the model, the data, the threads, and ``fit`` in blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Keras 3 fails under MultiWorkerMirrored
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers.turns import BATCH, CLASSES, FEATURES

RATE, WORKERS, PREPARED = 0.05, 2, 32
PER_CALL = 10
"""Steps of the compiled loop between two visits of Python. More is not quicker."""


def limit_threads(between: int = 1) -> None:
    """One thread for operators, as everybody has; ``between`` them, as few as go."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(between)


def make_model() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.InputLayer((FEATURES,)),
            layers.Dense(300, activation="relu"),
            layers.Dense(100, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def make_optimizer() -> Any:
    return tf.keras.optimizers.SGD(RATE)


def make_batches() -> Any:
    """A worker's batches, cut beforehand and endless: no work is left but to take one.

    Few, and made where they are used: arrays would be a part of the graph, and be sent with it.
    """
    share = BATCH // WORKERS
    x = tf.random.stateless_normal((PREPARED, share, FEATURES), seed=(0, 0))
    y = tf.random.stateless_uniform((PREPARED, share), (0, 1), 0, CLASSES, tf.int64)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat()


def make_step(model: Any, optimizer: Any, global_batch: int) -> Callable[[Any], None]:
    """One step of the documented custom loop, from one worker's part of a batch."""
    loss = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )

    def step(part: Any) -> None:
        x, y = part
        with tf.GradientTape() as tape:
            error = tf.nn.compute_average_loss(loss(y, model(x)), global_batch_size=global_batch)
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step


class _Stopwatch(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Only the steps: what ``fit`` prepares before an epoch is not counted."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds = time.perf_counter() - self.began


def fit_block(strategy: Any, data: Any, updates: int) -> Callable[[int], float]:
    """``fit`` of a compiled model; each of a worker's steps counts as ``updates`` of it."""
    with strategy.scope():
        model = make_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make_optimizer(), loss)

    def block(steps: int) -> float:
        watch = _Stopwatch()
        model.fit(data, steps_per_epoch=updates * steps, verbose=0, callbacks=[watch])
        return watch.seconds

    return block
