"""One worker of TensorFlow's MultiWorkerMirroredStrategy: the MLP, SGD, several steps a call.

The training step is the documented custom loop, compiled with the loop around it, which is
quicker than ``fit``: nothing goes back to Python between the steps of a call.
"""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf

from benchmarks.peers.tf_parts import (
    limit_threads,
    make_batches,
    make_loss,
    make_model,
    make_optimizer,
)
from benchmarks.peers.turns import BATCH, take_turns

PER_CALL = int(os.environ.get("BENCH_STEPS_PER_CALL", "10"))


def main() -> None:
    limit_threads()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
        loss = make_loss(reduction=tf.keras.losses.Reduction.NONE)
    workers = strategy.num_replicas_in_sync
    batches = iter(strategy.distribute_datasets_from_function(lambda _: make_batches(workers)))

    def step(part: Any) -> None:
        x, y = part
        with tf.GradientTape() as tape:
            error = tf.nn.compute_average_loss(loss(y, model(x)), global_batch_size=BATCH)
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def several(count: Any) -> None:
        for _ in tf.range(count):
            strategy.run(step, args=(next(batches),))

    def block(steps: int) -> float:
        began = time.perf_counter()
        for at in range(0, steps, PER_CALL):
            several(tf.constant(min(PER_CALL, steps - at)))
        model.trainable_variables[0].numpy()  # all of it has been computed
        return time.perf_counter() - began

    take_turns(block)
    os._exit(0)


if __name__ == "__main__":
    main()
