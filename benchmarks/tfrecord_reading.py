"""Rows of TFRecord files per CPU second: our reader against ``tf.data``, on one file each.

``python -m benchmarks tfrecord [PYTHON_WITH_TENSORFLOW]``: one JSON line per figure.
Without a Python, the environment of ``phalanx compare --systems`` is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import alternate, report, spread
from benchmarks.tensorflow_env import tensorflow_python
from phalanx.data.blocks.block import Columns
from phalanx.data.blocks.tfrecord import TFRecordReader
from phalanx.data.blocks.tfrecord_writer import write_tfrecord

ROWS, FLOATS, BYTES = 20_000, 784, 3_072
BAR = ">= 1.2"
# A process of its own: TensorFlow's environment has nothing of ours. A line in, a round done.
PEER = """
import json, sys, time
import tensorflow as tf

path, floats = sys.argv[1], int(sys.argv[2])
x = tf.io.FixedLenFeature([floats], tf.float32) if floats else tf.io.FixedLenFeature([], tf.string)
spec = {"x": x, "y": tf.io.FixedLenFeature([], tf.int64)}
for line in sys.stdin:
    began, rows = time.process_time(), 0
    records = tf.data.TFRecordDataset(path).batch(256)
    for batch in records.map(lambda some: tf.io.parse_example(some, spec)):
        rows += len(batch["y"])
    print(json.dumps([rows, time.process_time() - began]), flush=True)
"""


def main(words: list[str], rounds: int = 7) -> None:
    torch.set_num_threads(1)
    python, why = (Path(words[0]), "") if words else tensorflow_python()
    random = np.random.default_rng(1)
    labels = torch.from_numpy(random.integers(0, 1000, ROWS))
    images = torch.from_numpy(random.random((ROWS, FLOATS), np.float32))
    files = [random.bytes(BYTES) for _ in range(ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.tfrecord"
        for title, floats, x in ((f"{FLOATS} floats", FLOATS, images), ("3 kB", 0, files)):
            columns: Columns = {"x": x, "y": labels}
            write_tfrecord(path, columns)
            _compare(f"TFRecord, {title} and a label", path, floats, python, rounds)
    if python is None:
        report("TFRecord, tf.data", skipped=why)


def _compare(title: str, path: Path, floats: int, python: Path | None, rounds: int) -> None:
    reader = TFRecordReader([str(path)])
    blocks = {"ours": lambda: _rows_per_second(reader), "whole": lambda: _with_index(path)}
    if python is None:
        found = alternate(blocks, rounds)
    else:
        words = [str(python), "-c", PEER, str(path), str(floats)]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as peer:
            found = alternate({**blocks, "tf.data": _asking(peer)}, rounds)
            peer.communicate()
    for name, about in (("ours", ""), ("whole", " with the index"), ("tf.data", ", tf.data")):
        if name in found:
            report(f"{title}{about}, rows per CPU second", **spread(found[name]))
    for name, about in (("ours", "reading"), ("whole", "index and reading")):
        if "tf.data" in found:
            ratios = [a / b for a, b in zip(found[name], found["tf.data"], strict=True)]
            report(f"{title}, {about}: times tf.data", bar=BAR, **spread(ratios))


def _with_index(path: Path) -> float:
    """A first epoch: the index is made once."""
    began = time.process_time()
    reader = TFRecordReader([str(path)])
    indexed = time.process_time() - began
    return 1 / (1 / _rows_per_second(reader) + indexed / ROWS)


def _rows_per_second(reader: TFRecordReader) -> float:
    began, rows = time.process_time(), 0
    for block in reader.blocks:
        rows += len(reader.read(block)["y"])
    return rows / (time.process_time() - began)


def _asking(peer: subprocess.Popen[str]) -> Callable[[], float]:
    assert peer.stdin and peer.stdout
    asked, answers = peer.stdin, peer.stdout

    def block() -> float:
        asked.write("go\n")
        asked.flush()
        line = answers.readline()
        if not line:
            raise SystemExit("TensorFlow failed")
        rows, seconds = json.loads(line)
        return float(rows / seconds)

    return block


if __name__ == "__main__":
    main(sys.argv[1:])
