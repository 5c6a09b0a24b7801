"""One process of TensorFlow's ParameterServerStrategy: the MLP, SGD, asynchronous updates.

The chief schedules calls of several steps each, so that its own messages weigh little; a step
is one update from 64 samples, as under ``async``. Workers and servers never end by themselves.
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
from benchmarks.peers.turns import say, take_turns

WORKERS = 2
PER_CALL = int(os.environ.get("BENCH_STEPS_PER_CALL", "10"))


def main() -> None:
    limit_threads()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            start=True,
        )
        say("ready")
        server.join()
    _coordinate(resolver)


def _coordinate(resolver: Any) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer, loss = make_model(), make_optimizer(), make_loss()
        optimizer.build(model.trainable_variables)
    several = _steps(strategy, model, optimizer, loss)
    batches = iter(coordinator.create_per_worker_dataset(lambda: make_batches(WORKERS)))

    def block(steps: int) -> float:
        """``steps`` of each worker."""
        began = time.perf_counter()
        for _ in range(WORKERS * -(-steps // PER_CALL)):
            coordinator.schedule(several, args=(batches,))
        coordinator.join()
        return (time.perf_counter() - began) * steps / (-(-steps // PER_CALL) * PER_CALL)

    take_turns(block)
    os._exit(0)


def _steps(strategy: Any, model: Any, optimizer: Any, loss: Any) -> Any:
    def step(part: Any) -> None:
        x, y = part
        with tf.GradientTape() as tape:
            error = loss(y, model(x))
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def several(batches: Any) -> None:
        for _ in tf.range(PER_CALL):
            strategy.run(step, args=(next(batches),))

    return several


if __name__ == "__main__":
    main()
