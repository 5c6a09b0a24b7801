"""The model of mnist_mlp.py under Keras' own DataParallel on JAX: a peer to compare with.

    phalanx compare --systems phalanx,jax-dp examples/mnist_mlp.py --workers 2 --epochs 2

Keras is told by its variables who takes part (KERAS_DISTRIBUTION_…), without them it is one
process. It knows nothing of Phalanx but the lines that it prints for the report, and the variables
PHALANX_EPOCHS, PHALANX_BATCH, PHALANX_SEED and PHALANX_DATA, which it may be given.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

EPOCHS = int(os.environ.get("PHALANX_EPOCHS", "25"))
BATCH = int(os.environ.get("PHALANX_BATCH", "128"))  # of all workers together
SEED = int(os.environ.get("PHALANX_SEED", "0"))
RATE, MOMENTUM, SAMPLES = 0.05, 0.9, 54_000
SIZES = (784, 300, 100, 10)


def read_idx(name: str, skip: int) -> np.ndarray:
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    plain, zipped = folder / name, folder / f"{name}.gz"
    data = plain.read_bytes() if plain.is_file() else gzip.decompress(zipped.read_bytes())
    return np.frombuffer(data, np.uint8, offset=skip)


def read_mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(f"{part}-images-idx3-ubyte", 16).reshape(-1, 784)
    labels = read_idx(f"{part}-labels-idx1-ubyte", 8).astype("int32")
    return images.astype("float32") / 255, labels


def make_model() -> keras.Model:
    """The initial weights are drawn as torch draws them."""
    model = keras.Sequential([keras.Input((SIZES[0],))])
    for inputs, outputs in itertools.pairwise(SIZES):
        drawn = keras.initializers.RandomUniform(-(inputs**-0.5), inputs**-0.5)
        activation = "relu" if outputs != SIZES[-1] else None
        model.add(keras.layers.Dense(outputs, activation, True, drawn, drawn))
    return model


def evaluate(weights: list[Any], x: Any, y: Any) -> dict[str, float]:
    """By NumPy, of all test images, in one process."""
    for layer in range(0, len(weights), 2):
        x = x @ weights[layer] + weights[layer + 1]
        x = np.maximum(x, 0) if layer < len(weights) - 2 else x
    shifted = x - x.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return {
        "test_loss": float(-logs[np.arange(len(y)), y].mean()),
        "test_accuracy": float((x.argmax(axis=1) == y).mean()),
    }


def tell(**figures: float | int | None) -> None:
    print("phalanx-figures", json.dumps(figures), flush=True)


class Figures(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells every epoch, from the first process."""

    def __init__(self, samples: int, workers: int) -> None:
        super().__init__()
        self.samples, self.workers, self.test = samples, workers, read_mnist("t10k")

    def on_train_begin(self, logs: Any = None) -> None:
        count = self.model.count_params()
        tell(parameters=count, batch=BATCH, workers=self.workers, samples=self.samples,
             epochs=EPOCHS)  # fmt: skip

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        ended = time.perf_counter()
        figures = evaluate(self.model.get_weights(), *self.test)
        spent = time.perf_counter() - ended
        tell(epoch=epoch, seconds=ended - self.began, samples=self.samples,
             train_loss=(logs or {}).get("loss"), evaluate_seconds=spent, **figures)  # fmt: skip


def main() -> None:
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        keras.distribution.initialize()
    workers, rank = jax.process_count(), jax.process_index()
    keras.utils.set_random_seed(SEED)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    share = BATCH // workers
    steps = SAMPLES // BATCH  # it needs full batches
    x, y = (part[:SAMPLES][rank::workers][: steps * share] for part in read_mnist("train"))
    model = make_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM), loss)
    callbacks = [] if rank else [Figures(steps * share * workers, workers)]
    model.fit(x, y, share, EPOCHS, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main()
