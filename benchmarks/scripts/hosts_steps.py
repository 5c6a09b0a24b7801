"""One worker of ``python -m benchmarks hosts-steps``: the MLP, in blocks, by its own loop."""

from __future__ import annotations

import torch

import phalanx
from benchmarks.peers.turns import BATCH, make_data, take_turns
from benchmarks.scripts.blocks import blocks_of
from benchmarks.step_worker import make_mlp


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = (torch.from_numpy(part) for part in make_data())
    model = make_mlp()
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.05))
    take_turns(blocks_of(run, model, lambda samples: (x[:samples], y[:samples]), BATCH))


if __name__ == "__main__":
    main()
