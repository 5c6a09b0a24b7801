"""The model of mnist_mlp.py as an ordinary tf.distribute script: a peer to compare with.

    phalanx compare --systems phalanx,tf-mwms,tf-ps examples/mnist_mlp.py --workers 2 --epochs 2

TF_CONFIG decides: with parameter servers in it, ParameterServerStrategy, whose rate is divided by
the number of workers, as is usual for asynchronous updates; else MultiWorkerMirroredStrategy. It
knows nothing of Phalanx but the variables PHALANX_EPOCHS, PHALANX_BATCH, PHALANX_SEED and
PHALANX_DATA, which it may be given: what `fit` reports is read by Phalanx.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 cannot train under MultiWorkerMirrored
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy
import tensorflow as tf

EPOCHS = int(os.environ.get("PHALANX_EPOCHS", "25"))
BATCH = int(os.environ.get("PHALANX_BATCH", "128"))  # of all workers together
SEED = int(os.environ.get("PHALANX_SEED", "0"))
RATE, MOMENTUM, HELD_OUT, SAMPLES = 0.05, 0.9, 6000, 54000
SIZES = (784, 300, 100, 10)
CLUSTER = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {"worker": ["alone"]})
WORKERS = len(CLUSTER["worker"])


def read_idx(name: str, skip: int) -> Any:
    """As operations of TensorFlow, so that a worker of a chief reads its own file."""
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    zipped = not (folder / name).is_file()
    data = tf.io.read_file(str(folder / (f"{name}.gz" if zipped else name)))
    data = tf.io.decode_compressed(data, "GZIP") if zipped else data
    return tf.io.decode_raw(data, tf.uint8)[skip:]


def read_mnist(part: str) -> tuple[Any, Any]:
    images = tf.reshape(read_idx(f"{part}-images-idx3-ubyte", 16), (-1, 784))
    return images, tf.cast(read_idx(f"{part}-labels-idx1-ubyte", 8), tf.int32)


def as_floats(images: Any) -> Any:
    return tf.cast(images, tf.float32) / 255.0


def make_batches(batch: int) -> Any:
    """Endless batches of shuffled samples, gathered from one tensor: quicker than one by one."""
    x, y = read_mnist("train")
    # Traced once for all workers of a chief, so no seed: their orders have to differ.
    numbers = tf.data.Dataset.range(SAMPLES).shuffle(SAMPLES)
    batches = numbers.batch(batch).map(lambda at: (as_floats(tf.gather(x, at)), tf.gather(y, at)))
    return batches.repeat().prefetch(tf.data.AUTOTUNE)


def make_model() -> Any:
    """The initial weights are drawn as torch draws them."""
    layers, model = tf.keras.layers, tf.keras.Sequential()
    model.add(layers.InputLayer((SIZES[0],)))
    for number, (inputs, outputs) in enumerate(itertools.pairwise(SIZES)):
        bound = inputs**-0.5
        drawn = tf.keras.initializers.RandomUniform(-bound, bound, seed=SEED + number)
        shifts = tf.keras.initializers.RandomUniform(-bound, bound, seed=SEED + 10 + number)
        activation = "relu" if outputs != SIZES[-1] else None
        model.add(layers.Dense(outputs, activation, True, drawn, shifts))
    return model


def evaluate(weights: list[Any], x: Any, y: Any) -> dict[str, float]:
    """By NumPy, of all test images, in one process: the same for both strategies."""
    for layer in range(0, len(weights), 2):
        x = x @ weights[layer] + weights[layer + 1]
        x = numpy.maximum(x, 0) if layer < len(weights) - 2 else x
    shifted = x - x.max(axis=1, keepdims=True)
    logs = shifted - numpy.log(numpy.exp(shifted).sum(axis=1, keepdims=True))
    return {
        "test_loss": float(-logs[numpy.arange(len(y)), y].mean()),
        "test_accuracy": float((x.argmax(axis=1) == y).mean()),
    }


class Test(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Adds the figures of the test images to those of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        x, y = read_mnist("t10k")
        self.images, self.labels = as_floats(x).numpy(), y.numpy()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        weights = [one for layer in self.model.layers for one in (layer.kernel, layer.bias)]
        whole = [tf.convert_to_tensor(one).numpy() for one in weights]  # of all servers
        logs.update(evaluate(whole, self.images, self.labels))


def train(strategy: Any, rate: float, data: Any, steps: int, tests: bool = True) -> None:
    with strategy.scope():
        model = make_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Ten steps without going back to Python: the quickest that we found.
        model.compile(tf.keras.optimizers.SGD(rate, MOMENTUM), loss, steps_per_execution=10)
    callbacks = [Test()] if tests else []
    model.fit(data, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=callbacks)


def train_mirrored() -> None:
    tf.keras.utils.set_random_seed(SEED)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = make_batches(BATCH).with_options(options)
    first = strategy.cluster_resolver.task_id in (None, 0)
    train(strategy, RATE, data, -(-SAMPLES // BATCH), tests=first)


def train_with_servers() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        # With fewer threads between operations a server on few cores hangs.
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=WORKERS + 1)
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            config=config,
        ).join()
    # Each layer's weights are cut: TensorFlow puts the parts on the servers in turn.
    cut = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=1024, max_shards=len(CLUSTER["ps"])
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)
    share = BATCH // WORKERS
    steps = -(-SAMPLES // share)
    data = tf.keras.utils.experimental.DatasetCreator(lambda _: make_batches(share))
    train(strategy, RATE / WORKERS, data, steps)


def main() -> None:
    if "ps" in CLUSTER:
        train_with_servers()
    else:
        train_mirrored()


if __name__ == "__main__":
    main()
