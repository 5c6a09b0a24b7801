"""The model of mnist_convnet.py under MultiWorkerMirroredStrategy: a peer to compare with.

    phalanx compare --systems phalanx,tf-mwms examples/mnist_convnet.py --workers 2

It knows nothing of Phalanx but the lines that it prints for the report, and the variables
PHALANX_EPOCHS, PHALANX_BATCH, PHALANX_SEED and PHALANX_DATA, which it may be given.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 cannot train under MultiWorkerMirrored
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy
import tensorflow as tf

EPOCHS = int(os.environ.get("PHALANX_EPOCHS", "30"))
BATCH = int(os.environ.get("PHALANX_BATCH", "96"))  # of all workers together
SEED = int(os.environ.get("PHALANX_SEED", "0"))
CLUSTER = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {"worker": ["alone"]})


def read_idx(name: str, skip: int) -> Any:
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    plain, zipped = folder / name, folder / f"{name}.gz"
    data = plain.read_bytes() if plain.is_file() else gzip.decompress(zipped.read_bytes())
    return numpy.frombuffer(data, numpy.uint8)[skip:]


def read_mnist(part: str) -> tuple[Any, Any]:
    return read_idx(f"{part}-images-idx3-ubyte", 16), read_idx(f"{part}-labels-idx1-ubyte", 8)


def prepare(images: Any, labels: Any) -> tuple[Any, Any]:
    return images.reshape(-1, 28, 28, 1).astype("float32") / 255, labels.astype("int32")


def make_batches(x: Any, y: Any) -> Any:
    """Endless batches of shuffled samples, gathered from one tensor: quicker than one by one."""
    x, y = tf.constant(x), tf.constant(y)
    numbers = tf.data.Dataset.range(len(y)).shuffle(len(y), seed=SEED)
    batches = numbers.batch(BATCH).map(lambda at: (tf.gather(x, at), tf.gather(y, at)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.repeat().prefetch(tf.data.AUTOTUNE).with_options(options)


def drawn(number: int, inputs: int) -> dict[str, Any]:
    """Initial weights as torch draws them."""
    uniform, bound = tf.keras.initializers.RandomUniform, inputs**-0.5
    return {
        "kernel_initializer": uniform(-bound, bound, seed=SEED + number),
        "bias_initializer": uniform(-bound, bound, seed=SEED + 10 + number),
    }


def make_model() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.InputLayer((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu", **drawn(0, 9)),
            layers.Conv2D(64, 3, activation="relu", **drawn(1, 32 * 9)),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu", **drawn(2, 64 * 12 * 12)),
            layers.Dropout(0.5),
            layers.Dense(10, **drawn(3, 128)),
        ]
    )


def tell(**figures: float | int | None) -> None:
    print("phalanx-figures", json.dumps(figures), flush=True)


class Figures(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Tells every epoch, from the first worker; evaluates by a model of its own."""

    def __init__(self, samples: int, plain: Any, test: Any, spent: dict[str, float]) -> None:
        super().__init__()
        self.samples, self.plain, self.test, self.spent = samples, plain, test, spent

    def on_train_begin(self, logs: Any = None) -> None:
        workers, count = len(CLUSTER["worker"]), self.model.count_params()
        tell(parameters=count, batch=BATCH, workers=workers, samples=self.samples, epochs=EPOCHS,
             **self.spent)  # fmt: skip

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        ended = time.perf_counter()
        self.plain.set_weights(self.model.get_weights())
        x, y = self.test
        outputs = tf.concat([self.plain(x[at : at + 500]) for at in range(0, len(y), 500)], 0)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs).numpy()
        right = outputs.numpy().argmax(axis=1) == y
        figures = {"test_loss": float(losses.mean()), "test_accuracy": float(right.mean())}
        spent = time.perf_counter() - ended
        tell(epoch=epoch, seconds=ended - self.began, samples=self.samples,
             train_loss=(logs or {}).get("loss"), evaluate_seconds=spent, **figures)  # fmt: skip


def main() -> None:
    tf.keras.utils.set_random_seed(SEED)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    began = time.perf_counter()
    train, test = read_mnist("train"), read_mnist("t10k")
    read = time.perf_counter()
    (x, y), test = prepare(*train), prepare(*test)
    spent = {"read_seconds": read - began, "prepare_seconds": time.perf_counter() - read}
    first = strategy.cluster_resolver.task_id in (None, 0)
    callbacks = [Figures(len(y), make_model(), test, spent)] if first else []
    with strategy.scope():
        model = make_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = tf.keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-6)  # as torch's
        # Ten steps without going back to Python: the quickest that we found.
        model.compile(optimizer, loss, steps_per_execution=10)
    steps = -(-len(y) // BATCH)
    data = make_batches(x, y)
    model.fit(data, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main()
