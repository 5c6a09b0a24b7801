"""One process of TensorFlow's ParameterServerStrategy: the MLP, SGD; ``fit`` or ``loop``.

A step is one asynchronous update from 64 samples, as under ``async``. In the ``loop`` the chief
schedules calls of several steps, so that its own messages weigh little. Workers and servers
never end by themselves.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.peers.tf_parts import (
    PER_CALL,
    WORKERS,
    fit_block,
    limit_threads,
    make_batches,
    make_model,
    make_optimizer,
    make_step,
)
from benchmarks.peers.turns import BATCH, say, take_turns

THREADS = WORKERS + 1
"""TensorFlow's guide: with fewer threads between operators a server of few cores hangs."""


def main() -> None:
    limit_threads(THREADS)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        _serve(resolver)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    take_turns(_fit(strategy) if sys.argv[1] == "fit" else _loop(strategy))
    os._exit(0)


def _serve(resolver: Any) -> None:
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=THREADS
        ),
        start=True,
    )
    say("ready")
    server.join()


def _fit(strategy: Any) -> Callable[[int], float]:
    data = tf.keras.utils.experimental.DatasetCreator(lambda _: make_batches())
    return fit_block(strategy, data, WORKERS)


def _loop(strategy: Any) -> Callable[[int], float]:
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
        optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer, BATCH // WORKERS)
    batches = iter(coordinator.create_per_worker_dataset(make_batches))

    @tf.function
    def several(batches: Any) -> None:
        for _ in tf.range(PER_CALL):
            strategy.run(step, args=(next(batches),))

    def block(steps: int) -> float:
        calls = -(-steps // PER_CALL)
        began = time.perf_counter()
        for _ in range(WORKERS * calls):
            coordinator.schedule(several, args=(batches,))
        coordinator.join()
        return (time.perf_counter() - began) * steps / (calls * PER_CALL)

    return block


if __name__ == "__main__":
    main()
