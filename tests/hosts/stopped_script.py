"""Trains a small model with batch norm; says which samples it has seen. Word: epochs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

import phalanx


def main() -> None:
    epochs, samples = int(sys.argv[1]), 480
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    run = phalanx.join(model, optimizer, state={"scheduler": scheduler})
    print(f"key {'PHALANX_KEY' in os.environ}, data {run.data}", flush=True)
    run.save_best("test_loss")
    x = torch.randn(samples, 16, generator=torch.Generator().manual_seed(2))
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    (run.folder / f"from-{run.rank}").write_text("mine")
    seen = Path(sys.argv[2]) / f"seen-{run.rank}" if len(sys.argv) > 2 else None
    for epoch in run.epochs(epochs):
        for inputs, targets, numbers in run.batches((x, y, torch.arange(samples)), batch=24):
            run.backward(nn.functional.cross_entropy(model(inputs), targets))
            run.step()
            if seen is not None:
                with seen.open("a") as file:
                    file.writelines(f"{epoch} {int(n)}\n" for n in numbers)
        run.log(test_loss=run.evaluate(nn.functional.cross_entropy, (x, y)))
        scheduler.step()
    print("ended well", flush=True)


if __name__ == "__main__":
    main()
