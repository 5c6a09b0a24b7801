"""The same training for pyspark's ``TorchDistributor``: what its workers and ours import."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH, CLASSES, RATE = 64, 10, 0.05
Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def on_dataframe(rows: int, batch: int, epochs: int) -> dict[str, float]:
    """Of its own partition, by pyspark's loader."""
    from pyspark.ml.torch.distributor import _get_spark_partition_data_loader

    return _train(lambda _: iter(_get_spark_partition_data_loader(rows, batch)), epochs)


def on_parquet(folder: str, batch: int, epochs: int) -> dict[str, float]:
    """Each worker reads its own file, once, and shuffles it in memory."""
    import os

    import pyarrow.parquet as pq

    began = time.perf_counter()
    table = pq.read_table(sorted(Path(folder).glob("*.parquet"))[int(os.environ["RANK"])])
    features = table.column("features").combine_chunks().flatten().to_numpy()
    x = torch.from_numpy(features.copy()).view(-1, WIDTH)
    y = torch.from_numpy(table.column("label").to_numpy().copy())

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(batch):
            yield x[chosen], y[chosen]

    return _train(batches, epochs, waited=time.perf_counter() - began)


def _train(batches: Batches, epochs: int, waited: float = 0.0) -> dict[str, float]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    began, total, seen = time.perf_counter() - waited, 0.0, 0
    for epoch in range(epochs):
        total, seen, source = 0.0, 0, batches(epoch)
        while True:
            asked = time.perf_counter()
            found = next(source, None)
            waited += time.perf_counter() - asked
            if found is None:
                break
            x, y = found
            loss = nn.functional.cross_entropy(net(x.float()), y.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, seen = total + float(loss.detach()) * len(y), seen + len(y)
    seconds = time.perf_counter() - began
    dist.destroy_process_group()
    return {"loss": total / seen, "input": waited, "training": seconds, "rows": float(seen)}
