"""What a model keeps between its calls, beside parameters: to be put back, and to be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phalanx.train.whole.row_plan import near

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_Kept = list[tuple[nn.Module, dict[str, Any]]]


class ModuleState:
    """Of a module and those below it: buffers, other attributes, and torch's random numbers."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._random = torch.default_generator.get_state()
        self._buffers = [
            (b, b.detach().clone())
            for m in self._modules
            for b in m._buffers.values()
            if b is not None
        ]
        self._places = [(m, dict(m._buffers)) for m in self._modules]
        self._attributes: _Kept = [(m, _attributes(m)) for m in self._modules]

    def now(self) -> list[Any]:
        """What the module keeps, in memory of its own."""
        found: list[Any] = [
            None if b is None else b.detach().clone()
            for m in self._modules
            for b in m._buffers.values()
        ]
        for module in self._modules:
            for name, value in _attributes(module).items():
                found.append((id(module), name, _simple(value)))
        return found

    def same_as(self, other: list[Any]) -> bool:
        mine = self.now()
        return len(mine) == len(other) and all(map(_same, mine, other))

    def put_back(self) -> None:
        with torch.no_grad():
            for known, value in self._buffers:
                known.copy_(value)
        for module, buffers in self._places:
            for name, buffer in buffers.items():
                module._buffers[name] = buffer
        for module, attributes in self._attributes:
            for name in set(_attributes(module)) - set(attributes):
                del module.__dict__[name]
            for name, value in attributes.items():
                now = module.__dict__.get(name)
                if isinstance(value, _Copied):
                    value.put_back()
                    module.__dict__[name] = value.held
                elif now is not value:
                    module.__dict__[name] = value
        torch.default_generator.set_state(self._random)


class _Copied:
    """A list or dictionary, and what it had in it."""

    def __init__(self, held: Any) -> None:
        self.held, self._had = held, held.copy()

    def put_back(self) -> None:
        if isinstance(self.held, list):
            self.held[:] = self._had
        else:
            self.held.clear()
            self.held.update(self._had)


def watches_calls(module: nn.Module) -> bool:
    """Whether the script looks into calls of modules inside it, of which it would see a part."""
    for inner in module.modules():
        if inner is module:
            continue
        for kind in _HOOKS:
            for hook in getattr(inner, kind, {}).values():
                if not str(getattr(type(hook), "__module__", "")).startswith("torch.nn.utils"):
                    return True
    return False


def _attributes(module: nn.Module) -> dict[str, Any]:
    found = {}
    for name, value in module.__dict__.items():
        if name in _OWN or name.endswith("_hooks") or name == "_flat_weights":
            continue
        found[name] = _Copied(value) if type(value) in (list, dict) else value
    return found


_OWN = {"_parameters", "_buffers", "_modules", "training", "_flat_weight_refs"}
_OWN |= {"_non_persistent_buffers_set", "_is_full_backward_hook"}


def _simple(value: Any) -> Any:
    held = value.held if isinstance(value, _Copied) else value
    if isinstance(held, Tensor):
        return held.detach().clone()
    if isinstance(held, list | tuple):
        return [_simple(item) for item in held]
    if isinstance(held, dict):
        return {key: _simple(item) for key, item in held.items()}
    return held if isinstance(held, int | float | str | bool | None) else id(held)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and near(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)
