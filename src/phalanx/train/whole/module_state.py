"""Saves, restores and compares the state of a model between its calls, besides parameters.

That is all that can be reached from its attributes, from what its methods know by global names or
closures, and the states of random number generators.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from phalanx.train.whole.row_plan import near

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MOST = 1 << 24
"""Most numbers of a tensor that is copied."""
_OF_RNN = {"_flat_weights", "_flat_weight_refs"}
"""Attributes that torch itself makes again from the parameters."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
Slot = tuple[Any, Any]


class ModuleState:
    def __init__(self, module: nn.Module) -> None:
        self._module, self._names = module, _outer_names(module)
        self._random = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._outside = [get() for get, _ in self._names]
        stack: list[Any] = [module, *self._outside]
        while stack:
            held = stack.pop()
            if id(held) not in self._kept and (had := _copy(held)) is not None:
                self._kept[id(held)] = held, had
                stack.extend(_inside(held))

    def now(self) -> Any:
        """Return a copy of the present state."""
        drawn = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
        names = [get() for get, _ in self._names]
        return _frozen([self._module, names, *drawn], set())

    def same_as(self, other: Any) -> bool:
        return _same(self.now(), other)

    def put_back(self) -> None:
        for (_, put), value in zip(self._names, self._outside, strict=True):
            put(value)
        for held, had in self._kept.values():
            _put_back(held, had)
        torch.default_generator.set_state(self._random[0])
        random.setstate(self._random[1])
        np.random.set_state(self._random[2])


def _opaque(held: Any) -> bool:
    """Whether an object's attributes are not searched."""
    home = type(held).__module__ or ""
    strange = isinstance(held, type | FunctionType | nn.Parameter) or not hasattr(held, "__dict__")
    return strange or home.split(".")[0] in ("torch", "numpy", "phalanx", "builtins", "threading")


def _copy(held: Any) -> Any:
    """Return what is needed to put ``held`` back as it is; ``None``: nothing."""
    if isinstance(held, (*_PLAIN, UninitializedParameter)):
        return None
    if isinstance(held, Tensor):
        small = held.layout == torch.strided and held.numel() <= _MOST
        return held.detach().clone() if small else None
    if isinstance(held, np.ndarray):
        return held.copy() if held.size <= _MOST else None
    if isinstance(held, torch.Generator):
        return held.get_state()
    if isinstance(held, list | deque | set | tuple):
        return list(held)
    if isinstance(held, dict):
        return dict(held)
    return None if _opaque(held) and not isinstance(held, nn.Module) else True


def _inside(held: Any) -> list[Any]:
    if isinstance(held, dict):
        return list(held.values())
    if isinstance(held, list | deque | set | tuple):
        return list(held)
    plain = isinstance(held, Tensor | np.ndarray | torch.Generator)
    return [] if plain else [vars(held)]


def _put_back(held: Any, had: Any) -> None:
    """Restore values where they have changed, without autograd."""
    if isinstance(held, Tensor):
        if not torch.equal(held.detach(), had):
            held.data.copy_(had)
    elif isinstance(held, np.ndarray):
        if held.flags.writeable:
            held[...] = had
    elif isinstance(held, torch.Generator):
        held.set_state(had)
    elif isinstance(held, dict):
        if list(map(id, held.values())) != list(map(id, had.values())) or [*held] != [*had]:
            held.clear()
            held.update(had)
    elif isinstance(held, list | deque | set) and list(map(id, held)) != list(map(id, had)):
        held.clear()
        (held.update if isinstance(held, set) else held.extend)(had)


def _frozen(held: Any, seen: set[int]) -> Any:
    if isinstance(held, (*_PLAIN, UninitializedParameter)):
        return held if isinstance(held, _PLAIN) else id(held)
    if isinstance(held, nn.Parameter):  # few models write into parameters, which are large
        return [id(held), held.detach().sum()]
    if id(held) in seen:
        return "seen"
    seen.add(id(held))
    if isinstance(held, Tensor):
        return held.detach().clone() if held.layout == torch.strided else id(held)
    if isinstance(held, np.ndarray):
        return held.copy()
    if isinstance(held, torch.Generator):
        return held.get_state()
    if isinstance(held, list | tuple | deque):
        return [_frozen(item, seen) for item in held]
    if isinstance(held, dict):
        return {key: _frozen(item, seen) for key, item in held.items() if key not in _OF_RNN}
    if isinstance(held, set):
        return [repr(sorted(map(repr, held)))]
    if _opaque(held) and not isinstance(held, nn.Module):
        return id(held)
    return [type(held).__name__, _frozen(vars(held), seen)]


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and near(one, other)
    if isinstance(one, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        exact = one.dtype.kind != "f"
        return bool((one == other).all() if exact else np.allclose(one, other, rtol=1e-6))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return bool(one == other) or one != one


def _outer_names(module: nn.Module) -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Find globals and closures of a model's own methods; return a getter and a setter of each."""
    found: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
    classes = {c: None for m in module.modules() for c in type(m).__mro__}
    for kind in classes:
        if kind.__module__.split(".")[0] in ("torch", "builtins", "typing", "abc", "phalanx"):
            continue
        for method in vars(kind).values():
            if not isinstance(method, FunctionType):
                continue
            known = method.__globals__
            for name in method.__code__.co_names:
                if name in known and not isinstance(known[name], type | FunctionType):
                    found.append((partial(known.get, name), partial(known.__setitem__, name)))
            for cell in method.__closure__ or ():
                name = "cell_contents"
                found.append((partial(getattr, cell, name), partial(setattr, cell, name)))
    return found


# -- the modules of a model --------------------------------------------------------------------


def survey(module: nn.Module) -> tuple[list[Any], list[Slot], bool]:
    """Return a module's settings, the places of its trained parameters, and whether its calls can
    be shared out. This runs before every call, so it must be quick."""
    mode: list[Any] = []
    slots: list[Slot] = []
    stack, seen, whole = [module], set(), True
    while stack:
        inner = stack.pop()
        own = inner.__dict__
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        if "_parameters" not in own:  # it is a compiled script
            return mode, slots, False
        mode.append(inner.training)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"]:
            mode.append(sum(len(own[kind]) for kind in _HOOKS))
        if not type(inner).__module__.startswith("torch."):
            mode.extend(v for v in own.values() if v is None or type(v) is bool or type(v) is str)
        parameters = own["_parameters"]
        for name, parameter in parameters.items():
            if parameter is not None:
                whole = whole and type(parameter) is not UninitializedParameter
                if parameter.requires_grad:
                    slots.append((parameters, name))
        if own.get("sparse") is True:  # gradients of a few rows, which cannot be summed
            whole = False
        stack.extend(child for child in own["_modules"].values() if child is not None)
    return mode, slots, whole


def watches_calls(module: nn.Module) -> bool:
    """Whether the script has hooks on modules, which would see only a part of a shared call."""
    for inner in module.modules():
        for kind in _HOOKS:
            for hook in getattr(inner, kind, {}).values():
                if not str(getattr(type(hook), "__module__", "")).startswith("torch.nn.utils"):
                    return True
    return False


class _IfThere:
    """Calls a parameter's hook only if there is a gradient."""

    def __init__(self, hook: Callable[[Tensor], Any]) -> None:
        self._hook = hook

    def __call__(self, gradient: Tensor | None) -> Any:
        return None if gradient is None else self._hook(gradient)


def spare_hooks(slots: Sequence[Slot]) -> None:
    """Keep hooks of parameters from being called without a gradient, as in a shared call."""
    for where, name in slots:
        for key, hook in (where[name]._backward_hooks or {}).items():
            if not isinstance(hook, _IfThere):
                where[name]._backward_hooks[key] = _IfThere(hook)


@contextmanager
def swapped(slots: Sequence[Slot], values: dict[int, Tensor]) -> Iterator[None]:
    """Within this context, modules have ``values`` in place of their parameters."""
    before = [where[name] for where, name in slots]
    for (where, name), parameter in zip(slots, before, strict=True):
        where[name] = values[id(parameter)]
    try:
        yield
    finally:
        for (where, name), parameter in zip(slots, before, strict=True):
            where[name] = parameter
