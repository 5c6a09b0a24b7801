"""What a step of ``fit`` with one worker on a GPU costs the host, against a bare loop.

There need not be a GPU: a tiny model on the CPU steps as it would there, with torch's fused
kernels, which the CPU has as well. Microseconds of processor time, alternated in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import phalanx
from benchmarks.harness import report, spread
from phalanx.sync.state.device_skips import DeviceSkips, make_fused
from phalanx.sync.strategies.single import SingleOnGpu
from phalanx.train.engine.exchange import Exchange

STEPS, BATCH, EPOCHS, WARM = 600, 8, 14, 2


class Model(nn.Module):
    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.others = nn.ParameterList(nn.Parameter(torch.zeros(4)) for _ in range(parameters - 2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.first(x) + torch.stack(list(self.others)).sum(0)
        return found


def step_as_on_a_gpu() -> None:
    """From here on a worker alone treats its CPU as it would a GPU."""

    def begin(self: Any, gradients: list[Tensor]) -> None:
        self._tried = self._ours = True
        make_fused(self._optimizer, gradients)
        self._skips = DeviceSkips(self._optimizer, torch.device("cpu"))

    def made(self: Any, optimizers: Any, clock: Any, emulation: Any = None) -> None:
        plain(self, optimizers, clock, emulation)
        self.skip_on_device(optimizers[0], lambda _: None)

    plain: Callable[..., None] = Exchange.__init__
    SingleOnGpu._begin = begin  # type: ignore[method-assign]
    Exchange.__init__ = made  # type: ignore[method-assign]


class Turns:
    """Stands where a schedule stands: after each epoch of ``fit`` the loop trains for one."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self._model, self._x, self._y = model, x, y
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
        self._began = time.process_time()
        self.fit: list[float] = []
        self.bare: list[float] = []

    def step(self) -> None:
        self.fit.append((time.process_time() - self._began) / STEPS * 1e6)
        began = time.process_time()
        self._epoch()
        self.bare.append((time.process_time() - began) / STEPS * 1e6)
        self._began = time.process_time()

    def _epoch(self) -> None:
        order, loss = torch.randperm(len(self._x)), nn.CrossEntropyLoss()
        total, correct = torch.zeros(()), torch.zeros(())
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            features, targets = self._x[chosen], self._y[chosen]
            self._optimizer.zero_grad()
            outputs = self._model(features)
            error = loss(outputs, targets)
            error.backward()
            self._optimizer.step()
            total += error.detach() * len(targets)
            correct += (outputs.argmax(1) == targets).sum()
        float(total), float(correct)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        pass


def main() -> None:
    torch.set_num_threads(1)
    step_as_on_a_gpu()
    x, y = torch.randn(STEPS * BATCH, 4), torch.randint(0, 4, (STEPS * BATCH,))
    for parameters in (14, 65):
        model, turns = Model(parameters), Turns(Model(parameters), x, y)
        phalanx.fit(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            loss=nn.CrossEntropyLoss(),
            train=(x, y),
            epochs=EPOCHS,
            batch=BATCH,
            scheduler=turns,
        )
        more = [a - b for a, b in zip(turns.fit[WARM:], turns.bare[WARM:], strict=True)]
        name = f"fit with {parameters} parameters, microseconds of the host in a step"
        report(f"{name}, more than a loop", **spread(more), loop=median(turns.bare[WARM:]))


if __name__ == "__main__":
    main()
