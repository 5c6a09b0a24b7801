"""From a DataFrame to a trained model: our Estimator against pyspark's TorchDistributor.

``python -m benchmarks spark-data [--rows N] [--epochs N] [--repeats N] [--master URL]``: one JSON
line per figure. TorchDistributor trains by its DataFrame loader, and with each worker reading its
Parquet file itself. The same model, rows, batch, epochs, workers and cluster, in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import spark_peers
from benchmarks.harness import ROOT, report, spread

WORKERS, GROUP = 2, 20_000
OURS, LOADER, PARQUET = "Estimator", "TorchDistributor, its loader", "TorchDistributor, Parquet"
Figures = dict[str, float]


def write(folder: Path, rows: int) -> None:
    """A file for each worker; the classes can be learned."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((spark_peers.WIDTH, spark_peers.CLASSES), np.float32)
    for part in range(WORKERS):
        x = rng.standard_normal((rows // WORKERS, spark_peers.WIDTH), np.float32)
        ends = np.arange(0, x.size + 1, spark_peers.WIDTH, dtype=np.int32)
        features = pa.ListArray.from_arrays(pa.array(ends), pa.array(x.reshape(-1)))
        label = pa.array((x @ truth).argmax(axis=1).astype(np.int64))
        table = pa.table({"features": features, "label": label})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=GROUP)


def session(master: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master(master).appName("phalanx-benchmark")
    chosen = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false", "spark.executor.memory": "1g", "spark.executor.cores": "1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executorEnv.OMP_NUM_THREADS": "1", "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }  # fmt: skip
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def ways(spark: Any, folder: Path, args: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    from pyspark.ml.torch.distributor import TorchDistributor

    from phalanx.spark import Estimator

    each, rows = args.batch // WORKERS, args.rows // WORKERS

    def frame() -> Any:
        return spark.read.parquet(str(folder))

    def ours() -> Figures:
        fitted = Estimator(
            "benchmarks.spark_peers:model", optimizer_options={"lr": spark_peers.RATE},
            workers=WORKERS, batch=args.batch, epochs=args.epochs,
        ).fit(frame())  # fmt: skip
        found = fitted.figures
        assert sum(one.rows for one in found) == args.rows
        return {
            "loss": statistics.mean(one.loss for one in found),
            "input": max(one.input_seconds for one in found),
            "training": max(one.seconds for one in found),
        }

    def distributor() -> Any:
        return TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False)

    def loader() -> Figures:
        given = frame().repartition(WORKERS)
        found: Figures = distributor()._train_on_dataframe(
            spark_peers.on_dataframe, given, rows, each, args.epochs
        )
        return found

    def parquet() -> Figures:
        found: Figures = distributor().run(spark_peers.on_parquet, str(folder), each, args.epochs)
        return found

    return {OURS: ours, LOADER: loader, PARQUET: parquet}


def measure(made: dict[str, Callable[[], Figures]], repeats: int) -> dict[str, list[Figures]]:
    """One round that does not count, then in turn, every other round backwards."""
    found: dict[str, list[Figures]] = {name: [] for name in made}
    for number in range(repeats + 1):
        for name in list(made)[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            figures = made[name]()
            figures["total"] = time.perf_counter() - began
            shown = {what: round(value, 3) for what, value in figures.items()}
            report(f"Spark data, {name}: round {number}", **shown)
            if number:
                found[name].append(figures)
    return found


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark-data", description=__doc__)
    for name, value in (("rows", 200_000), ("epochs", 3), ("batch", 512), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--master", default=f"local-cluster[{WORKERS},1,1024]")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as name:
        write(Path(name), args.rows)
        spark = session(args.master)
        try:
            found = measure(ways(spark, Path(name), args), args.repeats)
        finally:
            spark.stop()
    about = f"{args.rows} rows of {spark_peers.WIDTH} floats, {args.epochs} epochs"
    for system, rounds in found.items():
        for what in ("total", "training", "input"):
            values = [round(each[what], 3) for each in rounds]
            report(f"Spark data, {system}: {what}, s", about=about, **spread(values))
        report(f"Spark data, {system}: loss", value=statistics.median(r["loss"] for r in rounds))
    for other, bar in ((LOADER, "< 1"), (PARQUET, "<= 1")):
        for what in ("total", "input"):
            pairs = zip(found[OURS], found[other], strict=True)
            ratios = [round(mine[what] / theirs[what], 3) for mine, theirs in pairs]
            report(f"Spark data, Estimator ÷ {other}: {what}", bar=bar, **spread(ratios))
    losses = {name: statistics.median(r["loss"] for r in rounds) for name, rounds in found.items()}
    if max(losses.values()) > 1.1 * min(losses.values()):
        raise SystemExit(f"the losses do not agree: {losses}")
