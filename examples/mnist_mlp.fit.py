"""The model of mnist_mlp.py as a plain Keras 3 script for one process, on any backend.

    python examples/mnist_mlp.fit.py
    phalanx run examples/mnist_mlp.fit.py --framework keras-jax --workers 2
    phalanx compare --systems phalanx,keras-torch,keras-jax examples/mnist_mlp.py --workers 2

Nothing in it is about Phalanx. MNIST is read from PHALANX_DATA, else from
~/.cache/phalanx/datasets.
"""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import keras
import numpy as np

EPOCHS, BATCH, TRAINED = 25, 128, 54_000
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


def main() -> None:
    keras.utils.set_random_seed(0)
    x, y = read_mnist("train")
    model = make_model()
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    held_out = x[TRAINED:], y[TRAINED:]
    model.fit(x[:TRAINED], y[:TRAINED], BATCH, EPOCHS, verbose=2, validation_data=held_out)
    loss, accuracy = model.evaluate(*read_mnist("t10k"), batch_size=1000, verbose=0)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
