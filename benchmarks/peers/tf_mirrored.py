"""One worker of TensorFlow's MultiWorkerMirroredStrategy: the MLP, SGD; ``fit`` or ``loop``.

``fit`` is what tf_keras does by itself. ``loop`` is the documented custom step, compiled with
a loop around it, so that nothing goes back to Python between steps: the quickest that we found.
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
    fit_block,
    limit_threads,
    make_batches,
    make_model,
    make_optimizer,
    make_step,
)
from benchmarks.peers.turns import BATCH, take_turns


def main() -> None:
    limit_threads()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    data = strategy.distribute_datasets_from_function(lambda _: make_batches())
    block = fit_block(strategy, data, 1) if sys.argv[1] == "fit" else _loop(strategy, data)
    take_turns(block)
    os._exit(0)


def _loop(strategy: Any, data: Any) -> Callable[[int], float]:
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
    step, batches = make_step(model, optimizer, BATCH), iter(data)

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

    return block


if __name__ == "__main__":
    main()
