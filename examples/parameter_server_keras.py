"""A Keras script as people have it: MNIST with a ParameterServerStrategy and a chief.

    phalanx run --framework tensorflow examples/parameter_server_keras.py --pool pool.yaml

Among four machines the first is the chief, the last the server; in numbers, also for one machine:
--framework tensorflow:worker=2,ps=1.

Nothing in it is about Phalanx; TF_CONFIG tells each process what it is. Workers and servers wait
for the chief's orders for ever: their starter ends them when the chief is done.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf

BATCH, EPOCHS, STEPS = 64, 2, 400


def read_idx(name: str, skip: int) -> tf.Tensor:
    """As operations of TensorFlow: the workers carry them out, so they read their own file."""
    home = Path(os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/datasets").expanduser()
    folder = home / "mnist" if (home / "mnist").is_dir() else home
    data = tf.io.decode_compressed(tf.io.read_file(str(folder / f"{name}.gz")), "GZIP")
    return tf.io.decode_raw(data, tf.uint8)[skip:]


def make_data(context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    x = tf.reshape(read_idx("train-images-idx3-ubyte", 16), (-1, 784))
    y = tf.cast(read_idx("train-labels-idx1-ubyte", 8), tf.int32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60_000).repeat().batch(BATCH)
    return data.map(lambda a, b: (tf.cast(a, tf.float32) / 255.0, b)).prefetch(2)


def make_model() -> tf.keras.Model:
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(128, activation="relu", input_shape=(784,)),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.05), loss, steps_per_execution=10)
    return model


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    workers = resolver.cluster_spec().num_tasks("worker")
    # With fewer threads between operations a server on few cores hangs (TensorFlow's guide).
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=workers + 1)
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        config=config,
        start=True,
    )
    server.join()


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = make_model()
    data = tf.keras.utils.experimental.DatasetCreator(make_data)
    model.fit(data, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=2)


if __name__ == "__main__":
    main()
