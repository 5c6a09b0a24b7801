"""A Keras 3 script as people have it: MNIST with one convolution, for one process.

    python examples/keras_mnist_cnn.py
    phalanx run examples/keras_mnist_cnn.py --workers 2

Nothing in it is about Phalanx. KERAS_BACKEND chooses torch, tensorflow or jax, as for any Keras
script. MNIST is read from PHALANX_DATA, else from ~/.cache/phalanx/datasets.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import keras
import numpy as np
from keras import layers


def read_idx(name: str, skip: int) -> np.ndarray:
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    plain, zipped = folder / name, folder / f"{name}.gz"
    data = plain.read_bytes() if plain.is_file() else gzip.decompress(zipped.read_bytes())
    return np.frombuffer(data, np.uint8, offset=skip)


def read_mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
    labels = read_idx(f"{part}-labels-idx1-ubyte", 8).astype("int32")
    return images.astype("float32") / 255, labels


def make_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def main() -> None:
    keras.utils.set_random_seed(0)
    x, y = read_mnist("train")
    model = make_model()
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=64, epochs=3, validation_data=read_mnist("t10k"), verbose=2)


if __name__ == "__main__":
    main()
