"""A residual network on noise, as a script has it that knows no Phalanx; prints seconds an epoch.

``--size 32 --width 64`` is about a CIFAR-10 network, ``--size 128 --width 128`` a wider one.
``--clip`` clips gradients; ``--ddp`` trains with torch's DDP on Gloo, started by ``torchrun``.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = nn.Conv2d(inside, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet(width: int) -> nn.Module:
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks: list[nn.Module] = [Block(width, width, 1), Block(width, width, 1)]
    for wider in (2 * width, 4 * width):
        blocks += [Block(wider // 2, wider, 2), Block(wider, wider, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    return nn.Sequential(*stem, *blocks, *head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--samples", type=int, default=25_600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--clip", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.randn(args.samples, 3, args.size, args.size)
    data = TensorDataset(images, torch.randint(0, 10, (args.samples,)))
    model = resnet(args.width).to(device)
    sampler, batch = None, args.batch
    if args.ddp:
        torch.distributed.init_process_group("gloo")
        batch //= torch.distributed.get_world_size()
        model = nn.parallel.DistributedDataParallel(model)
        sampler = torch.utils.data.DistributedSampler(data)
    loader = DataLoader(
        data, batch_size=batch, sampler=sampler, shuffle=sampler is None,
        pin_memory=device.type == "cuda", num_workers=args.loaders,
        persistent_workers=args.loaders > 0,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        began, total = time.perf_counter(), torch.zeros((), device=device)
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = loss_of(model(x), y)
            loss.backward()
            if args.clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        mean = total.item() / len(loader)
        print(
            f"epoch {epoch} seconds {time.perf_counter() - began:.4f} loss {mean:.4f}", flush=True
        )


if __name__ == "__main__":
    main()
