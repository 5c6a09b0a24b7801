"""Training from label-sorted Parquet by blocks: the test loss, and how long a step waits for input.

``python -m benchmarks blocks [--seeds N]``: one JSON line per figure. MNIST as float32, sorted by
label; a window of 64 MB is about a third of it. The loss is compared with that of a shuffle of all
rows, over the same seeds; windows of one row group show what a window is for. The input wait is
that of a CNN, two workers. ``--group``: rows of a row group; ``--wait-only``: without the losses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from examples.published import load

from benchmarks.harness import report
from phalanx.data.reader import as_reader

SCRIPT = """
import json, sys, time
import torch, phalanx
from examples.published import load
from torch import nn

path, by, window, kind, epochs = sys.argv[1:]
_, (images, labels) = load("mnist")
models = {
    "mlp": [nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)],
    "cnn": [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10)],
}
model, loss = nn.Sequential(*models[kind]), nn.CrossEntropyLoss()
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
data = phalanx.data.read(path, columns=("x", "y"), by=by, window=int(window) or None)
waits, steps = 0.0, 0.0
for epoch in run.epochs(int(epochs)):
    batches, began = iter(run.batches(data, batch=128)), time.perf_counter()
    while True:
        asked = time.perf_counter()
        found = next(batches, None)
        waited = time.perf_counter() - asked
        if found is None:
            break
        x, y = found
        run.backward(loss(model(x.view(-1, 1, 28, 28)), y))
        run.step()
        waits += waited
    steps += time.perf_counter() - began
if run.rank == 0:
    with torch.no_grad():
        value = loss(model(images.float().view(-1, 1, 28, 28)), labels).item()
    open("found.json", "w").write(json.dumps({"loss": value, "wait": waits / steps}))
"""


def write_sorted(path: Path, rows: int | None, group: int) -> None:
    reader = as_reader(load("mnist")[0])
    images, labels = reader.tensors  # type: ignore[attr-defined]
    order = labels[:rows].argsort(stable=True)
    x = images[:rows][order].float().reshape(len(order), -1).contiguous()
    flat = pa.FixedSizeListArray.from_arrays(pa.array(x.numpy().reshape(-1)), x.shape[1])
    table = pa.table({"x": flat, "y": pa.array(labels[:rows][order].numpy())})
    pq.write_table(table, path, row_group_size=group)


def trained(folder: Path, seed: int, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "phalanx", "run", "train.py", "--workers", "2", "--seed",
               str(seed), "--strategy", "allreduce", "--", "rows.parquet", *words]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr, timeout=1200)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks blocks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--group", type=int, default=100)
    parser.add_argument("--wait-only", action="store_true")
    chosen = parser.parse_args(words)
    ways = {
        "shuffle of all rows": ("sample", "0"),
        "window of 64 MB": ("block", "0"),
        "window of a row group": ("block", "1"),
    }
    losses: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        write_sorted(folder / "rows.parquet", None, chosen.group)
        for seed in range(0 if chosen.wait_only else chosen.seeds):
            for way, (by, window) in ways.items():
                losses[way].append(trained(folder, seed, by, window, "mlp", "3")["loss"])
        for way, found in losses.items() if losses["window of 64 MB"] else ():
            deviation = statistics.stdev(found) if len(found) > 1 else 0.0
            mean = statistics.mean(found)
            report(f"blocks, label-sorted, test loss, {way}", mean=mean, deviation=deviation)
        write_sorted(folder / "rows.parquet", 20_000, chosen.group)
        for way, (by, window) in ways.items():
            wait = 100 * trained(folder, 0, by, window, "cnn", "1")["wait"]
            report(f"blocks, CNN, input wait, % of the step, {way}", bar="<= 2", value=wait)


if __name__ == "__main__":
    main(sys.argv[1:])
