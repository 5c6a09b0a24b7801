"""The device that the strategies' contract is tested on: ``PHALANX_TEST_DEVICE=cuda`` for a GPU.

Models go there when they join; what a test looks at afterwards is brought back to the host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from phalanx.train.worker import build_worker as assembly

_NAME = os.environ.get("PHALANX_TEST_DEVICE", "cpu")
DEVICE = torch.device("cuda:0" if _NAME == "cuda" else _NAME)
AWAY = DEVICE.type != "cpu"
T = TypeVar("T")


def compute_exactly() -> None:
    """Sums in one order and in full precision, so that runs can be compared."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)


def on_device(tensor: Tensor) -> Tensor:
    return tensor.to(DEVICE)


def on_host(value: T) -> T:
    """``value`` with every tensor in it (in models, lists, tuples and dicts too) on the host."""
    found: Any = value
    if isinstance(value, Tensor | nn.Module):
        found = value.cpu()
    elif isinstance(value, dict):
        found = {key: on_host(item) for key, item in value.items()}
    elif isinstance(value, list):
        found = [on_host(item) for item in value]
    elif type(value) is tuple:
        found = tuple(on_host(item) for item in value)
    return found  # type: ignore[no-any-return]


@contextmanager
def brought_home() -> Iterator[None]:
    """Whatever joins inside is on the host afterwards, as a test that made it expects."""
    if not AWAY:
        yield
        return
    models: list[nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    as_models, as_optimizers = assembly.as_models, assembly.as_optimizers

    def models_noted(given: Any) -> list[nn.Module]:
        models.extend(found := as_models(given))
        return found

    def optimizers_noted(given: Any) -> list[torch.optim.Optimizer]:
        optimizers.extend(found := as_optimizers(given))
        return found

    assembly.as_models, assembly.as_optimizers = models_noted, optimizers_noted
    try:
        yield
    finally:
        assembly.as_models, assembly.as_optimizers = as_models, as_optimizers
        for model in models:
            model.cpu()
        for optimizer in optimizers:
            for parameter, state in optimizer.state.items():
                optimizer.state[parameter] = on_host(state)
