"""Rows of Parquet per second: our passes by blocks against bare pyarrow, and memory.

``python -m benchmarks parquet [--rows N] [--repeats N] [--train ROWS]``: one JSON line per figure.
``--train``: also trains a linear model on that many rows, and reports the memory of a worker.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.harness import alternate, report, spread
from phalanx.data.blocks.block_data import BlockData
from phalanx.data.blocks.read import read
from phalanx.policies.sample_assignment import Segment, lockstep
from phalanx.train.samples.epoch_batches import loaded, new_pass

COLUMNS, BATCH, GROUP = 23, 1024, 100_000
"""23 floats and a label of 8 bytes: 100 bytes a row."""


def write(path: Path, rows: int) -> None:
    rng, writer = np.random.default_rng(0), None
    for first in range(0, rows, GROUP):
        count = min(GROUP, rows - first)
        x = rng.standard_normal((count, COLUMNS), np.float32)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), COLUMNS)
        table = pa.table({"x": flat, "y": pa.array((x[:, 0] > 0).astype(np.int64))})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="none")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def bare(path: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Row group by row group, to tensors, cut into batches."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        x = table.column("x").combine_chunks().flatten().to_numpy()
        y = table.column("y").combine_chunks().to_numpy()
        tensors = torch.tensor(x).view(-1, COLUMNS), torch.tensor(y)
        for first in range(0, len(y), BATCH):
            yield tensors[0][first : first + BATCH], tensors[1][first : first + BATCH]


def ours(path: Path, *, shuffle: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    data = read(str(path), columns=("x", "y"), by="block", shuffle=shuffle)
    assert isinstance(data, BlockData)
    current = new_pass(0, 0, data, BATCH, 0)
    leases = lockstep(Segment(0, len(data), 0), BATCH, 0, [1.0])
    found = loaded(current, leases, torch.device("cpu"), ahead=2, channels_last=False)
    return (batch for _, batch in found)


def seconds(batches: Iterator[tuple[torch.Tensor, torch.Tensor]], rows: int) -> float:
    began, seen = time.perf_counter(), 0
    for x, y in batches:
        seen += len(y)
        x.sum()  # touched, as a training would
    assert seen == rows
    return time.perf_counter() - began


# Freed pages that the kernel may take back at any time (LazyFree) are not counted.
TRAIN = """
import json, sys, time
import torch, phalanx

def used():
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":") for line in file.readlines()[1:])
    return 1024 * (int(fields["Rss"].split()[0]) - int(fields["LazyFree"].split()[0]))

peak = steps = 0
model = torch.nn.Linear(23, 2)
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
data, began = phalanx.data.read(sys.argv[1], columns=("x", "y"), by="block"), time.time()
for epoch in run.epochs(1):
    for x, y in run.batches(data, batch=4096):
        run.backward(torch.nn.functional.cross_entropy(model(x), y))
        run.step()
        steps += 1
        if steps % 50 == 0:
            peak = max(peak, used())
open(f"peak-{run.rank}.json", "w").write(json.dumps([peak, time.time() - began]))
"""


def train(path: Path, folder: Path) -> None:
    script = folder / "train_rows.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "phalanx", "run", str(script), "--workers", "2",
               "--strategy", "allreduce", "--", str(path)]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr, timeout=3000)
    found = [json.loads((folder / f"peak-{rank}.json").read_text()) for rank in range(2)]
    report("parquet, most memory of a worker, GB", bar="<= 1", value=max(f[0] for f in found) / 1e9)
    report("parquet, an epoch of two workers, s", value=max(f[1] for f in found))


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks parquet", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--train", type=int, default=0)
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        path = Path(name) / "rows.parquet"
        write(path, chosen.rows)
        ways = {
            "bare pyarrow": lambda: seconds(bare(path), chosen.rows),
            "unshuffled": lambda: seconds(ours(path, shuffle=False), chosen.rows),
            "shuffled": lambda: seconds(ours(path, shuffle=True), chosen.rows),
        }
        found = alternate(ways, chosen.repeats)
        for way, taken in found.items():
            report(f"parquet, {way}, rows/s", **spread([chosen.rows / s for s in taken]))
        for way, bar in (("unshuffled", ">= 0.9"), ("shuffled", ">= 0.55")):
            ratios = [a / b for a, b in zip(found["bare pyarrow"], found[way], strict=True)]
            report(f"parquet, {way}, of bare pyarrow", bar=bar, **spread(ratios))
        if chosen.train:
            path.unlink()
            write(path, chosen.train)
            train(path, Path(name))


if __name__ == "__main__":
    main(sys.argv[1:])
