"""The model of mnist_mlp.py by Spark's Estimator: a system to compare with.

    phalanx compare --systems phalanx,spark-estimator examples/mnist_mlp.py --workers 2 --epochs 2
    python examples/mnist_mlp.spark.py

It is Spark's driver: it makes a session, writes MNIST as Parquet, and fits the Estimator. Phalanx
gives it PHALANX_ESTIMATOR_WORKERS, and if they were given PHALANX_EPOCHS, PHALANX_BATCH and
PHALANX_SEED. The master is SPARK_MASTER, or this machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from published import load
from pyspark.sql import SparkSession

from phalanx.spark import Estimator

HERE = Path(__file__).parent
WORKERS = int(os.environ.get("PHALANX_ESTIMATOR_WORKERS", "2"))


def write_mnist(file: Path) -> None:
    train, _ = load("mnist")
    images = pa.array(list(train.x.reshape(len(train.x), -1).numpy()), pa.list_(pa.float32()))
    pq.write_table(pa.table({"features": images, "label": train.y.numpy()}), file)


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = os.environ.get("SPARK_MASTER", f"local[{WORKERS}]")
    spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.addPyFile(str(HERE / "mnist_mlp.py"))
    estimator = Estimator(
        "mnist_mlp:make_model",
        optimizer="sgd",
        optimizer_options={"lr": 0.05, "momentum": 0.9},
        validation=0.1,
        workers=WORKERS,
        batch=int(os.environ.get("PHALANX_BATCH", "128")),
        epochs=int(os.environ.get("PHALANX_EPOCHS", "25")),
        seed=int(os.environ.get("PHALANX_SEED", "0")),
    )
    with TemporaryDirectory() as folder:
        write_mnist(Path(folder, "mnist.parquet"))
        model = estimator.fit(spark.read.parquet(folder))
    print(model.history[-1])
    spark.stop()


if __name__ == "__main__":
    main()
