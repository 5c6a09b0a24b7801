"""A script of Hugging Face Accelerate as people have it; ``accelerate launch`` starts it as well.

    phalanx run --framework torch examples/plain_accelerate.py --pool pool.yaml
    accelerate launch --num_processes 2 examples/plain_accelerate.py

Nothing in it is about Phalanx. Machines may have unequal numbers of processes.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def made_up_digits(samples: int) -> TensorDataset:
    """Ten blurred patterns of 8 by 8, from the seed: there is nothing to download."""
    patterns = torch.randn(10, 64)
    labels = torch.randint(10, (samples,))
    return TensorDataset(patterns[labels] + 2 * torch.randn(samples, 64), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    train, test = torch.utils.data.random_split(made_up_digits(6000), [5000, 1000])
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(train, batch_size=32, shuffle=True),
        DataLoader(test, batch_size=100),
    )
    for epoch in range(arguments.epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        right = []
        for x, y in test_loader:
            with torch.no_grad():
                right.append(accelerator.gather_for_metrics(model(x).argmax(1) == y))
        accuracy = torch.cat(right).float().mean().item()
        accelerator.print(
            f"epoch {epoch + 1}: accuracy {accuracy:.3f}, {accelerator.num_processes} processes",
            flush=True,
        )
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
