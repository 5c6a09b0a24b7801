"""A training loop of one's own: what a plain loop gains are the lines that begin with `run`.

phalanx run examples/own_loop.py --workers 2
python examples/own_loop.py
"""

from __future__ import annotations

import torch
from torch import nn

import phalanx


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def main() -> None:
    train, test = phalanx.data.load("digits")
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    loss = nn.CrossEntropyLoss()

    run = phalanx.join(model, optimizer, state={"scheduler": scheduler})
    run.save_best("test_accuracy")
    for _ in run.epochs(10):
        for x, y in run.batches(train, batch=64):
            with run.autocast():
                error = loss(model(x), y)
            run.backward(error)
            run.step(clip=1.0)
        scheduler.step()
        accuracy = run.evaluate(phalanx.accuracy, test)
        run.log(test_accuracy=accuracy)
        if accuracy > 0.99:
            run.stop()


if __name__ == "__main__":
    main()
