"""Plain Keras, timed: ``python benchmarks/scripts/keras_fit.py mlp BATCH``, one JSON line."""

from __future__ import annotations

import json
import os
import sys
import time

import keras
import numpy as np
from keras import layers

STEPS, EPOCHS = 60, 4


def make_model(name: str) -> keras.Model:
    if name == "mlp":
        parts = [keras.Input((784,)), layers.Dense(300, activation="relu")]
        parts += [layers.Dense(100, activation="relu"), layers.Dense(10)]
        return keras.Sequential(parts)
    parts = [keras.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu")]
    parts += [layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    return keras.Sequential([*parts, layers.Dense(64, activation="relu"), layers.Dense(10)])


class Clock(keras.callbacks.Callback):
    """Of every epoch but the first: seconds and seconds of the processor, a step."""

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.steps, self.began = 0, (time.perf_counter(), time.process_time())

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps += 1
        self.ended = (time.perf_counter(), time.process_time())

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch:
            each = [(b - a) / self.steps for a, b in zip(self.began, self.ended, strict=True)]
            found.append(each)


found: list[list[float]] = []


def main(name: str, batch: int) -> None:
    keras.utils.set_random_seed(0)
    steps = STEPS if name == "mlp" else STEPS // 4
    x = np.random.rand(batch * steps, 784).astype("float32")
    y = np.random.randint(0, 10, len(x))
    model = make_model(name)
    model.compile(
        keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    x = x if name == "mlp" else x.reshape(-1, 28, 28, 1)
    model.fit(x, y, batch_size=batch, epochs=EPOCHS, verbose=0, callbacks=[Clock()])
    if os.environ.get("PHALANX_RANK", "0") == "0":
        wall, cpu = (float(np.median(column)) for column in zip(*found, strict=True))
        print(json.dumps({"wall": wall, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
