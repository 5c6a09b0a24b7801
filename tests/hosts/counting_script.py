"""Trains one large matrix; notes the kernel's counters of eth0 at the start of every step.

Words: a file to write, how many samples, how many epochs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

import phalanx

WIDTH = 2000
BATCH = 4


def counters() -> tuple[int, int]:
    """Bytes received and sent, as the kernel of this network counts them."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            values = figures.split()
            return int(values[0]), int(values[8])
    raise RuntimeError("there is no eth0 here")


def main() -> None:
    folder, samples, epochs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(1)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    x = torch.randn(samples, WIDTH)
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    noted: list[tuple[int, int, int]] = []
    for epoch in run.epochs(epochs):
        for batch, target in run.batches((x, x.flip(1)), batch=BATCH):
            noted.append((epoch, *counters()))
            run.backward(nn.functional.mse_loss(model(batch), target))
            run.step()
    (folder / f"{run.rank}.json").write_text(json.dumps(noted))


if __name__ == "__main__":
    main()
