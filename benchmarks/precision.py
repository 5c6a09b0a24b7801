"""``--precision auto`` against float32 on the CIFAR-10 ResNet, one worker, batch 64."""

from __future__ import annotations

import runpy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.harness import alternate, report, spread
from phalanx.train.worker.precision import autocast, choose, supports_bfloat16

BATCH = 64
EXAMPLE = Path(__file__).parents[1] / "examples" / "cifar_resnet.py"


def main(rounds: int = 5) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    make = runpy.run_path(str(EXAMPLE))["make_model"]
    steps = {name: _step(make(), name) for name in ("float32", "bfloat16")}
    chosen, note = choose("auto", device, lambda name: (steps[name](), None)[1])
    report("precision auto chose", value=chosen, note=note, bfloat16=supports_bfloat16(device))
    found = alternate({"float32": steps["float32"], "auto": steps[chosen]}, rounds)
    for name, seconds in found.items():
        report(f"resnet, {name}, images/s", **spread([BATCH / s for s in seconds]))
    ratios = [a / b for a, b in zip(found["float32"], found["auto"], strict=True)]
    report("precision auto / float32, images/s", bar=">= 2 with AMX", **spread(ratios))


def _step(model: nn.Module, precision: str) -> Callable[[], float]:
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    if precision == "bfloat16":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def block() -> float:
        began = time.perf_counter()
        with autocast(precision, torch.device("cpu")):
            error = nn.functional.cross_entropy(model(x), y)
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    return block


if __name__ == "__main__":
    main()
