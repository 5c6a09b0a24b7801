"""Turns what a script asks to be saved with its run, and random generators, into plain values.

A scheduler's ``state_dict()`` holds numbers, texts, lists and dictionaries, sometimes tensors.
Tensors are stored with the model's, the rest in the manifest; another type is refused by name.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from phalanx.core.errors import InputError

TENSOR, PAIRS = "__tensor__", "__pairs__"
ORDER, WHOLE = "order", "whole"
"""The key of an ``OrderState``; in it, the key for whether workers saw whole batches."""


class Keeper(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def pack(name: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` in a form that JSON can hold; its tensors are put into ``tensors``."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone()
        return {TENSOR: name}
    if isinstance(value, list | tuple):
        return [pack(f"{name}.{i}", item, tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: pack(f"{name}.{key}", item, tensors) for key, item in value.items()}
        pairs = [
            [pack(name, k, tensors), pack(f"{name}.{k}", v, tensors)] for k, v in value.items()
        ]
        return {PAIRS: pairs}
    raise InputError(
        f"'{name}' of the run's state is a {type(value).__name__}, which no checkpoint can hold",
        "Keep only numbers, strings, lists, dictionaries and tensors in its state_dict().",
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if isinstance(value, dict):
        if set(value) == {TENSOR}:
            return tensors[value[TENSOR]]
        if set(value) == {PAIRS}:
            return {unpack(k, tensors): unpack(v, tensors) for k, v in value[PAIRS]}
        return {key: unpack(item, tensors) for key, item in value.items()}
    return value


IMPLEMENTATION = ("foreach", "fused")
"""Options of an optimizer that suit a machine, and are not part of a training."""


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each parameter group, which schedulers change."""
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def restore_groups(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    for group, values in zip(optimizer.param_groups, saved, strict=False):
        for name, value in values.items():
            if name in IMPLEMENTATION:
                continue
            if name in group:
                group[name] = tuple(value) if isinstance(group[name], tuple) else value
            elif name == "initial_lr":
                group[name] = value


def random_state() -> dict[str, Tensor]:
    """Return the states of Python's, NumPy's and torch's generators."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    found = {
        "random.python": torch.tensor([version, *words], dtype=torch.int64),
        "random.python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "random.numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        "random.numpy.rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "random.torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # a CPU worker beside a GPU has no use for a context there
        found["random.cuda"] = torch.cuda.get_rng_state()
    return found


def restore_random(state: Mapping[str, Tensor]) -> None:
    if "random.python" not in state:
        return
    version, *words = state["random.python"].tolist()
    gauss = state["random.python.gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    position, has_gauss, cached = state["random.numpy.rest"].tolist()
    keys = state["random.numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))
    torch.set_rng_state(state["random.torch"])
    if "random.cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["random.cuda"])
