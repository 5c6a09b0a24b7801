"""The model of examples/mnist_mlp.py under MultiWorkerMirroredStrategy, as its tutorials write it.

    phalanx compare --systems keras-tf examples/mnist_mlp.py --workers 2 --epochs 2
    phalanx run --framework tensorflow benchmarks/scripts/mwms_fit.py --workers 2 --epochs 2

examples/mnist_mlp.keras.py is the same, tuned: ten steps per execution, batches gathered from one
tensor. It knows nothing of Phalanx but the lines that it prints for the report.
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

EPOCHS = int(os.environ.get("PHALANX_EPOCHS", "25"))
BATCH, SAMPLES = int(os.environ.get("PHALANX_BATCH", "128")), 54000
CLUSTER = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {"worker": ["alone"]})


def read_idx(name: str, skip: int) -> Any:
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    plain, zipped = folder / name, folder / f"{name}.gz"
    data = plain.read_bytes() if plain.is_file() else gzip.decompress(zipped.read_bytes())
    return numpy.frombuffer(data, numpy.uint8, offset=skip)


def tell(**figures: float | int | None) -> None:
    print("phalanx-figures", json.dumps(figures), flush=True)


class Figures(tf.keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_begin(self, logs: Any = None) -> None:
        workers = len(CLUSTER["worker"])
        tell(parameters=self.model.count_params(), batch=BATCH, workers=workers,
             samples=SAMPLES, epochs=EPOCHS)  # fmt: skip

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seconds = time.perf_counter() - self.began
        tell(epoch=epoch, seconds=seconds, samples=SAMPLES, train_loss=(logs or {}).get("loss"))


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = read_idx("train-images-idx3-ubyte", 16).reshape(-1, 784)[:SAMPLES].astype("float32") / 255
    y = read_idx("train-labels-idx1-ubyte", 8)[:SAMPLES].astype("int32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(300, "relu", input_shape=(784,)),
                tf.keras.layers.Dense(100, "relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.05, 0.9), loss)
    speaks = strategy.cluster_resolver.task_id in (None, 0)
    callbacks = [Figures()] if speaks else []
    model.fit(data.with_options(options), epochs=EPOCHS, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main()
