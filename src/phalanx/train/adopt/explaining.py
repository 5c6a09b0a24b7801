"""``phalanx run --explain``: adoption that writes down what it finds, and ends at the first steps.

One worker runs the script until each of its optimizers has taken a step, and refuses what several
workers would refuse.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.explained import Explanation, FoundData, FoundModel, FoundOptimizer, Place
from phalanx.core.settings import RunSettings
from phalanx.train.adopt.adopted_training import Drawn
from phalanx.train.adopt.adoption import Adoption
from phalanx.train.adopt.loader_pass import order_of
from phalanx.train.adopt.script_length import passes_of
from phalanx.train.files.calling_code import kind_of
from phalanx.train.step.loss_kind import LossWatch, SumLossError
from phalanx.train.step.stepper import watch_backward

_SEVERAL = 2
_MOST_BATCHES = 100
"""Batches after which an optimizer without a step counts as one that takes none."""
_PASS_ON = {"torch", "tqdm", "rich", "alive_progress", "fastprogress", "contextlib", "phalanx"}
"""Libraries that only pass a script's call on: none of them is reported as its library."""


class Explaining(Adoption):
    def __init__(self, chosen: RunSettings, folder: Path) -> None:
        super().__init__(chosen, _SEVERAL)
        self._folder = RunPaths(folder).files
        self._found = Explanation(loss=chosen.loss)
        self._made_at: dict[int, Place | None] = {}
        self._stepped: set[int] = set()
        self._begun = False

    def joins_itself(self) -> None:
        self._found = Explanation(joins=True)
        self._end_here()

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        super().made(optimizer)
        if not self._joining:
            own = _own_frames(sys._getframe(1))
            self._made_at[id(optimizer)] = _place_of(own[0]) if own else None

    # -- passes ------------------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        inside = self._training is not None and self._training.under_way
        if self._begun and not self._joining and not inside:
            self._end_here()
        return super().iterate(loader, plain)

    def _train(
        self,
        loader: DataLoader[Any],
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        drawn: Drawn | None = None,
    ) -> Iterator[Any]:
        if self._begun:
            self._end_here()
        frame, found = sys._getframe(1), self._found
        own = _own_frames(frame)
        found.script = str(getattr(sys.modules["__main__"], "__file__", ""))
        found.models = [_model(model, own) for model in models]
        found.optimizers = [_optimizer(one, self._made_at.get(id(one))) for one in optimizers]
        found.schedulers = _schedulers(optimizers)
        found.data = _data(loader, frame, own)
        found.epochs = self._chosen.epochs or passes_of(frame)
        found.differences = _differences(models, loader)
        found.write(self._folder)
        self._begun = True
        try:
            batches = super()._train(loader, models, optimizers)
        except InputError as error:
            self._found.refused.append(error.cause)
            self._end_here()
        plain = watch_backward(None)

        def look(loss: torch.Tensor, factor: torch.Tensor | None) -> None:
            self._see(loss)
            if plain is not None:
                plain(loss, factor)

        watch_backward(look)
        return self._some(batches)

    def _some(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from islice(batches, _MOST_BATCHES)
        self._end_here()

    # -- losses and steps --------------------------------------------------------------------

    def _see(self, loss: torch.Tensor) -> None:
        if self._found.loss is not None or loss.numel() != 1 or loss.grad_fn is None:
            return
        assert self._training is not None
        try:
            samples = self._training.parts.stopwatch.batch_samples
            counted = LossWatch().weight_of(loss, samples)
            self._found.loss = "mean" if counted is None or counted.even else "weighted mean"
        except InputError as error:
            sums = isinstance(error, SumLossError) and error.whole
            self._found.loss = "sum" if sums else "other"
            if not sums:
                self._found.refused.append(error.cause)
        self._found.write(self._folder)

    def passes_on(self, optimizer: torch.optim.Optimizer) -> bool:
        ours = super().passes_on(optimizer)
        training = self._training
        if ours and not self._joining and training is not None and training.knows(optimizer):
            self._stepped.add(id(optimizer))  # a GradScaler has stepped with it
            self._end_if_all_stepped()
        return ours

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        plain: Callable[..., Any],
        closure: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        training = self._training
        known = training is not None and training.knows(optimizer)
        if training is None or not known or not training.under_way:
            if self._begun and known:
                self._end_here()  # a pass has ended before everything was seen
            return super().step(optimizer, plain, closure, **kwargs)
        self._stepped.add(id(optimizer))
        if closure is None:
            self._end_if_all_stepped()
        found = super().step(optimizer, plain, closure, **kwargs)  # the closure may make the loss
        self._end_if_all_stepped()
        return found

    def _end_if_all_stepped(self) -> None:
        if all(id(known) in self._stepped for known in self._optimizers()):
            self._end_here()

    def _end_here(self) -> NoReturn:
        self._found.complete = True
        self._found.write(self._folder)
        raise SystemExit(0)  # everything was seen: the script ends here without failing


# -- places in the script --------------------------------------------------------------------


def _own_frames(frame: FrameType) -> list[FrameType]:
    """Return the frames in the script's own files, the innermost first."""
    return [one for one, _ in walk_stack(frame) if kind_of(one.f_code.co_filename) == "script"]


def _place_of(frame: FrameType) -> Place:
    code, file = frame.f_code, Path(frame.f_code.co_filename)
    folder = Path(getattr(sys.modules["__main__"], "__file__", "")).parent
    for known in (folder, folder.resolve()):  # as it was named, and as its imports are found
        if file.is_relative_to(known):
            file = file.relative_to(known)
    function = "" if code.co_name == "<module>" else code.co_name
    return Place(file=str(file), line=frame.f_lineno, function=function)


def _library(frame: FrameType) -> str | None:
    """Return the library between ``frame`` and the script's own files, if it does more than pass
    arguments on."""
    stack = (one for one, _ in walk_stack(frame))
    between = takewhile(lambda one: kind_of(one.f_code.co_filename) != "script", stack)
    names = (str(one.f_globals.get("__name__", "")).partition(".")[0] for one in between)
    return next((name for name in names if name not in _PASS_ON), None)


def _name_in(frame: FrameType, wanted: Any) -> str | None:
    """Return what the code of ``frame`` calls an object: a name, or an attribute of ``self``."""
    owner = frame.f_locals.get("self")
    held = {**getattr(owner, "__dict__", {}), **getattr(owner, "_modules", {})}
    spaces = {**frame.f_globals, **frame.f_locals, **{f"self.{n}": v for n, v in held.items()}}
    return next((n for n, v in spaces.items() if v is wanted and not n.startswith("_")), None)


# -- what was found --------------------------------------------------------------------------


def _model(model: nn.Module, own: Sequence[FrameType]) -> FoundModel:
    names = ((name, frame) for frame in reversed(own) if (name := _name_in(frame, model)))
    name, frame = next(names, (None, None))
    return FoundModel(
        kind=type(model).__name__, parameters=sum(p.numel() for p in model.parameters()),
        name=name, place=_place_of(frame) if frame else None,
    )  # fmt: skip


def _optimizer(optimizer: torch.optim.Optimizer, place: Place | None) -> FoundOptimizer:
    rate = optimizer.param_groups[0].get("lr")
    return FoundOptimizer(
        kind=type(optimizer).__name__, rate=None if rate is None else float(rate), place=place
    )


def _schedulers(optimizers: Sequence[torch.optim.Optimizer]) -> list[str]:
    """Return the names of the schedulers of these optimizers' learning rates."""
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), LRScheduler))
    owners = ((thing, getattr(thing, "optimizer", None)) for thing in found)
    # A library may have wrapped the optimizer.
    return [
        type(thing).__name__
        for thing, owner in owners
        if any(getattr(owner, "optimizer", owner) is known for known in optimizers)
    ]


def _data(loader: DataLoader[Any], frame: FrameType, own: Sequence[FrameType]) -> FoundData:
    states = torch.get_rng_state()
    drawn = order_of(loader)  # only to look at: the random numbers are put back
    torch.set_rng_state(states)
    return FoundData(
        kind=type(loader.dataset).__name__,
        samples=len(loader.dataset),  # type: ignore[arg-type]
        batch=drawn.batch,
        batches=-(-len(drawn.order) // drawn.batch),
        shuffled=bool((drawn.order[1:] < drawn.order[:-1]).any()),
        place=_place_of(own[0]) if own else None,
        library=_library(frame),
    )


def _differences(models: Sequence[nn.Module], loader: DataLoader[Any]) -> list[str]:
    """Describe what several workers compute differently from one process."""
    modules = [module for model in models for module in model.modules()]
    found = []
    if any(isinstance(module, _BatchNorm) for module in modules):
        found.append("batch norm normalises each worker's part of the batch by itself")
    dropout = "dropout and " if any(isinstance(m, _DropoutNd) for m in modules) else ""
    found.append(f"{dropout}random numbers drawn in the loop: each worker draws its own")
    if not isinstance(loader.dataset, TensorDataset):
        found.append("random transforms are seeded by the sample, not by the order of reading")
    return found
