"""What somebody who knows their GPU writes for the model of ``examples/cifar_resnet.py``.

Data and augmentation on the GPU, nothing that waits for it inside an epoch, the test after each
epoch; ``--compiled`` with CUDA graphs. Prints the seconds of each epoch as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from examples.cifar_resnet import make_model
from examples.published import load
from torch import Tensor, nn

GPU = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
BATCH, PAD = 128, 4


def augmented(x: Tensor) -> Tensor:
    count, channels, height, width = x.shape
    padded = nn.functional.pad(x, (PAD, PAD, PAD, PAD))
    top = torch.randint(0, 2 * PAD + 1, (count, 1, 1, 1), device=x.device)
    left = torch.randint(0, 2 * PAD + 1, (count, 1, 1, 1), device=x.device)
    rows = (torch.arange(height, device=x.device).view(1, 1, -1, 1) + top).expand(
        -1, channels, -1, width + 2 * PAD
    )
    columns = torch.arange(width, device=x.device).view(1, 1, 1, -1) + left
    flipped = torch.rand(count, 1, 1, 1, device=x.device) < 0.5
    columns = torch.where(flipped, columns.flip(3), columns).expand(-1, channels, height, -1)
    return padded.gather(2, rows).gather(3, columns)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--compiled", action="store_true")
    chosen = parser.parse_args()
    train, test = load("cifar-10")
    mean = train.x.mean(0)
    x, y = (train.x - mean)[: chosen.samples].to(GPU), train.y[: chosen.samples].to(GPU)
    tx, ty = (test.x - mean).to(GPU), test.y.to(GPU)
    model, loss = make_model().to(GPU), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fast = torch.compile(model, mode="reduce-overhead", dynamic=False) if chosen.compiled else model
    seconds = []
    for _ in range(chosen.epochs):
        began = time.perf_counter()
        model.train()
        order = torch.randperm(len(x), device=GPU)
        total = torch.zeros((), device=GPU)
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            features, whole = augmented(x[rows]), len(rows) == BATCH
            optimizer.zero_grad()
            error = loss((fast if whole else model)(features), y[rows])
            error.backward()
            optimizer.step()
            total += error.detach()
        model.eval()
        correct = torch.zeros((), device=GPU)
        with torch.no_grad():
            for start in range(0, len(tx), 1000):
                found = model(tx[start : start + 1000]).argmax(1)
                correct += (found == ty[start : start + 1000]).sum()
        float(total), float(correct)
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"epochs": seconds, "accuracy": float(correct) / len(tx)}))


if __name__ == "__main__":
    main()
