"""Patches torch before an adopted script begins; after an explicit join the patches do nothing.

Hooks depend on the thread: for one that reads data, or belongs to no worker, torch is unchanged.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from phalanx.core import context, settings
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.sync.state.gradients import set_grad

if TYPE_CHECKING:
    from phalanx.train.adopt.adoption import Adoption


class _Current(threading.local):
    adoption: Adoption | None = None


_current = _Current()
_READING = ("torch.utils.data.", "phalanx.data.")
_plain_init = torch.optim.Optimizer.__init__
_plain_iter = DataLoader.__iter__
_plain_zero = torch.optim.Optimizer.zero_grad
_plain_seed = torch.manual_seed
_plain_state = torch.set_rng_state
_plain_group = getattr(torch.distributed, "init_process_group", None)
"""``None`` where torch was built without ``torch.distributed``."""


def adopt_this_worker() -> None:
    """Begin adoption, before the script of a worker begins."""
    inside = context.current()
    variables = inside.environment if inside else os.environ
    chosen = RunSettings.from_json(variables.get(settings.SETTINGS, "{}"))
    from phalanx.train.adopt.adoption import Adoption
    from phalanx.train.adopt.found_models import note_what_is_made
    from phalanx.train.step.clipping import watch_clipping
    from phalanx.train.step.stepper import watch_backward

    workers = int(variables.get(settings.WORKERS, "1"))
    if chosen.explain:
        from phalanx.train.adopt.explaining import Explaining

        _current.adoption = Explaining(chosen, Path(variables[settings.RUN_FOLDER]))
    else:
        _current.adoption = Adoption(chosen, workers)
    if _plain_group is not None:
        torch.distributed.init_process_group = _refuse_group
    setattr(torch.optim.Optimizer, "__init__", _init)  # noqa: B010
    setattr(DataLoader, "__iter__", _iterate)  # noqa: B010
    setattr(torch.optim.Optimizer, "zero_grad", _zero_grad)  # noqa: B010
    torch.manual_seed = _seed
    torch.random.manual_seed = _seed
    torch.set_rng_state = torch.random.set_rng_state = _set_state
    watch_backward(_current.adoption.before_training)
    watch_clipping(None)  # so that a script that imports the function by name gets the watched one
    note_what_is_made()
    from phalanx.train.keras.adoption import adopt_keras

    adopt_keras(hand_over)
    if workers > 1:
        from phalanx.train.files.side_effects import keep_files_apart

        paths = RunPaths(Path(variables[settings.RUN_FOLDER]))
        keep_files_apart(int(variables.get(settings.RANK, "0")), paths)


def end_adoption() -> None:
    """End adoption: the script joins the run itself."""
    adoption, _current.adoption = _current.adoption, None
    if adoption is not None and not adoption.profiles:
        from phalanx.train.files.side_effects import stop_keeping

        stop_keeping()
    if adoption is not None:
        adoption.joins_itself()


def hand_over() -> None:
    """Leave torch alone, because another library's adoption takes over; files stay apart."""
    from phalanx.train.step.stepper import watch_backward

    if _current.adoption is not None:
        watch_backward(None)
    _current.adoption = None


def current_adoption() -> Adoption | None:
    return _current.adoption


@functools.wraps(_plain_init)
def _init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    _plain_init(self, *args, **kwargs)
    _wrap_step(type(self))
    if _current.adoption is not None:
        _current.adoption.made(self)


def _wrap_step(kind: Any) -> None:
    """Wrap a class's ``step`` before schedulers are made, which keep the step that they find."""
    plain = kind.step
    if hasattr(plain, "_phalanx_plain"):
        return

    @functools.wraps(plain)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        adoption = _current.adoption
        if adoption is None or adoption.passes_on(self):
            return plain(self, *args, **kwargs)
        return adoption.step(self, plain, *args, **kwargs)

    setattr(step, "_phalanx_plain", plain)  # noqa: B010
    setattr(step, "hooked", True)  # noqa: B010  # as torch marks those that it has wrapped
    kind.step = step


def _refuse_group(*args: Any, **kwargs: Any) -> Any:
    if _current.adoption is None:
        return _plain_group(*args, **kwargs) if _plain_group else None
    raise InputError(
        "the script distributes its training itself (init_process_group)",
        "Run it with --framework torch, or take init_process_group out of the script.",
    )


@functools.wraps(_plain_zero)
def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    """Zero gradients without torch's wrappers, which would run once in every step."""
    if _current.adoption is None or not set_to_none:
        _plain_zero(self, set_to_none)
        return
    for group in self.param_groups:
        for parameter in group["params"]:
            set_grad(parameter, None)


def _iterate(self: DataLoader[Any]) -> Iterator[Any]:
    adoption = _current.adoption
    if adoption is None:
        return _plain_iter(self)
    return adoption.iterate(self, functools.partial(_plain_iter, self))


@functools.wraps(_plain_seed)
def _seed(seed: Any) -> torch.Generator:
    before = torch.default_generator.get_state()
    generator = _plain_seed(seed)
    if _current.adoption is not None:
        # Except when a dataset seeds to make a sample, and restores everything.
        modules = (f.f_globals.get("__name__", "") for f, _ in walk_stack(sys._getframe(1)))
        if not any(name.startswith(_READING) for name in modules):
            _current.adoption.streams.seeded(before)
    return generator


@functools.wraps(_plain_state)
def _set_state(new_state: torch.Tensor) -> None:
    _plain_state(new_state)
    if _current.adoption is not None:
        _current.adoption.streams.put_back()
