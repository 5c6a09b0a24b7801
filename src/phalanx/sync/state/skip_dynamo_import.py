"""Lets an optimizer be made without importing torch's compiler.

torch marks some methods of optimizers so that its compiler passes over them, and imports the whole
compiler on their first call, which takes as long as importing torch itself. Until something has
imported it, nothing is being compiled and the mark means nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"
"""The name by which torch keeps the marked form of a method; without it, this does nothing."""
_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def without_compiler() -> None:
    for name in _METHODS:
        skip_compiler(getattr(torch.optim.Optimizer, name))


def skip_compiler(method: Callable[..., Any]) -> None:
    """Keep a ``method`` that torch has marked from importing the compiler on its first call."""
    plain = getattr(method, "__wrapped__", None)
    if plain is not None and getattr(plain, _MARK, None) is None:
        setattr(plain, _MARK, _marked_when_needed(plain))


def step_without_compiler() -> None:
    """Put a stand-in in place of the compiler, which each step asks not to compile it.

    It is for processes that take few steps; a caller that asks it for anything else gets the
    compiler.
    """
    if COMPILER not in sys.modules:
        torch._dynamo = sys.modules[COMPILER] = _STAND_IN


class StepWithoutCompiler:
    """A context in which a step of one of torch's own optimizers does not import the compiler.

    Only they ask for it, and only that it passes over them. Whatever else is done in a step, such
    as a closure that compiles a model, gets the compiler itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._stands_in = type(optimizer).__module__.startswith("torch.optim")

    def __enter__(self) -> None:
        if self._stands_in:
            step_without_compiler()

    def __exit__(self, *_: object) -> None:
        if sys.modules.get(COMPILER) is _STAND_IN:
            _remove_stand_in()
        else:
            self._stands_in = False  # something has imported the real one


def _of_the_compiler(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    _remove_stand_in()
    return getattr(importlib.import_module(COMPILER), name)


def _remove_stand_in() -> None:
    del sys.modules[COMPILER], torch._dynamo


_STAND_IN: Any = ModuleType(COMPILER)
_STAND_IN.graph_break = lambda *_, **__: None
_STAND_IN.__getattr__ = _of_the_compiler


def _marked_when_needed(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return method(*args, **kwargs)
        delattr(method, _MARK)  # so that torch itself marks it from now on
        marked = torch._compile._disable_dynamo(method)
        return marked(*args, **kwargs)

    return call
