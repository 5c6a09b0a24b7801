"""A script of PyTorch Lightning as people have it; ``torchrun`` starts it as well.

    phalanx run --framework torch examples/plain_lightning.py --pool pool.yaml
    torchrun --nproc-per-node 2 examples/plain_lightning.py --devices 2

Nothing in it is about Phalanx. Machines may have unequal numbers of processes.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def made_up_digits(samples: int) -> TensorDataset:
    """Ten blurred patterns of 8 by 8, from the seed: there is nothing to download."""
    patterns = torch.randn(10, 64)
    labels = torch.randint(10, (samples,))
    return TensorDataset(patterns[labels] + 2 * torch.randn(samples, 64), labels)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        x, y = batch
        right = (self.layers(x).argmax(1) == y).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            accuracy, processes = self.trainer.callback_metrics["accuracy"], self.trainer.world_size
            self.print(
                f"epoch {self.current_epoch + 1}: accuracy {accuracy:.3f}, {processes} processes"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--devices", type=int)
    parser.add_argument("--nodes", type=int)
    arguments = parser.parse_args()

    lightning.seed_everything(0)
    train, test = random_split(made_up_digits(6000), [5000, 1000])
    sizes = {"devices": arguments.devices, "num_nodes": arguments.nodes}
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        **{name: size for name, size in sizes.items() if size},
    )
    trainer.fit(Classifier(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, 100))


if __name__ == "__main__":
    main()
