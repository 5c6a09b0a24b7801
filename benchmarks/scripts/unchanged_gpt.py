"""A small language model on random tokens, as a script has it that knows no Phalanx.

It cuts its batches by hand. ``--clip`` adds what most such scripts have: clipping, and a learning
rate that is set for each step. ``--ddp`` trains with torch's DDP on Gloo, started by ``torchrun``.
Prints seconds an epoch.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.think(self.after(x))


class Gpt(nn.Module):
    def __init__(self, words: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, width // 64) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        found = self.head(self.norm(self.layers(self.word(tokens) + self.place(places))))
        return functional.cross_entropy(found.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--words", type=int, default=16_384)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--clip", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    samples = args.batch * args.steps
    text = torch.randint(0, args.words, (samples, args.length + 1))
    model: nn.Module = Gpt(args.words, args.width, args.layers, args.length).to(device)
    sampler, batch = None, args.batch
    if args.ddp:
        torch.distributed.init_process_group("gloo")
        batch //= torch.distributed.get_world_size()
        model = nn.parallel.DistributedDataParallel(model)
        sampler = torch.utils.data.DistributedSampler(text)
    loader = torch.utils.data.DataLoader(
        text, batch_size=batch, sampler=sampler, shuffle=sampler is None, pin_memory=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    step, last = 0, args.epochs * args.steps
    for epoch in range(args.epochs):
        began, total = time.perf_counter(), torch.zeros((), device=device)
        for some in loader:
            some = some.to(device, non_blocking=True)
            if args.clip:
                for group in optimizer.param_groups:
                    group["lr"] = 3e-4 * 0.5 * (1 + math.cos(math.pi * step / last))
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = model(some[:, :-1], some[:, 1:])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if args.clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
            step += 1
        mean = total.item() / args.steps
        print(
            f"epoch {epoch} seconds {time.perf_counter() - began:.4f} loss {mean:.4f}", flush=True
        )


if __name__ == "__main__":
    main()
