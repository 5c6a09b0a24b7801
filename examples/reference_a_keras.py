"""A Keras script as people have it: MNIST with one convolution, MultiWorkerMirroredStrategy.

    phalanx run examples/reference_a_keras.py --framework tensorflow --pool p.yaml --machines cpus

The job that a study of choosing machines from a pool ran: SGD at 0.001, 64 images per worker,
3 epochs. Nothing in it is about Phalanx; TF_CONFIG tells it who takes part.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 cannot train under MultiWorkerMirrored

import numpy as np
import tensorflow as tf

BATCH_PER_WORKER, EPOCHS = 64, 3


def read_idx(name: str, skip: int) -> np.ndarray:
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    zipped = folder / f"{name}.gz"
    data = (
        gzip.decompress(zipped.read_bytes()) if zipped.is_file() else (folder / name).read_bytes()
    )
    return np.frombuffer(data, np.uint8, offset=skip)


def read_mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    x = read_idx(f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
    return x, read_idx(f"{part}-labels-idx1-ubyte", 8).astype(np.int64)


def make_data(batch: int) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(read_mnist("train")).shuffle(60_000).batch(batch)
    data = data.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options).prefetch(tf.data.AUTOTUNE)


def make_model() -> tf.keras.Model:
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    workers = max(1, len(cluster.get("worker", [])))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    data = make_data(BATCH_PER_WORKER * workers)
    with strategy.scope():
        model = make_model()
    model.fit(data, epochs=EPOCHS, verbose=2)


if __name__ == "__main__":
    main()
