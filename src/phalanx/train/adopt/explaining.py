"""``phalanx run --explain``: adoption that writes down what it finds, and ends at the first steps.

One worker runs the script as it would be adopted, until each of its optimizers has taken a step.
What is refused is what several workers would refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.data import DataLoader

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.explained import CallingFunction, Explanation, FoundStep, Place
from phalanx.core.settings import RunSettings
from phalanx.train.adopt.adopted_training import Drawn
from phalanx.train.adopt.adoption import Adoption
from phalanx.train.adopt.findings import data_of, describe_models, differences, rates
from phalanx.train.adopt.places import ScriptPlaces, name_in, step_in
from phalanx.train.adopt.script_length import passes_of
from phalanx.train.step.loss_kind import LossWatch, SumLossError
from phalanx.train.step.stepper import watch_backward

_SEVERAL = 2
_MOST_BATCHES = 100
"""An optimizer that has taken no step by then is one that takes none."""


class Explaining(Adoption):
    def __init__(self, chosen: RunSettings, folder: Path) -> None:
        super().__init__(chosen, _SEVERAL)
        self._folder = RunPaths(folder).files
        self._found = Explanation(loss=chosen.loss)
        self._made_at: dict[int, list[Place]] = {}
        self._stepped: set[int] = set()
        self._begun = False

    def joins_itself(self) -> None:
        """The script calls Phalanx after all."""
        self._found = Explanation(joins=True)
        self._end_here()

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        super().made(optimizer)
        if not self._joining:
            frame = sys._getframe(1)
            places = ScriptPlaces(frame)
            self._made_at[id(optimizer)] = [places.of(f) for f in reversed(places.own(frame))]

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
        frame = sys._getframe(1)
        places, found = ScriptPlaces(frame), self._found
        found.script = str(places.script or "")
        found.callers = [
            CallingFunction(
                place=places.of(own),
                models=[name_in(own, model) for model in models],
                optimizers=[name_in(own, optimizer) for optimizer in optimizers],
            )
            for own in reversed(places.own(frame))
        ]
        found.models = describe_models(models, found.callers)
        found.optimizers, found.schedulers = rates(optimizers, self._made_at)
        found.data = data_of(places, frame, loader)
        found.epochs = self._chosen.epochs or passes_of(frame)
        found.differences = differences(models, loader)
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
            self._note_step(optimizer, sys._getframe(1), closure=False)  # by a GradScaler
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
        if training is None or not training.knows(optimizer) or not training.under_way:
            if self._begun and training is not None and training.knows(optimizer):
                self._end_here()  # after a pass that ended before all was seen
            return super().step(optimizer, plain, closure, **kwargs)
        self._note_step(optimizer, sys._getframe(1), closure=closure is not None)
        if closure is not None:  # the loss is in there
            super().step(optimizer, plain, closure, **kwargs)
        self._end_if_all_stepped()
        return None if closure is not None else super().step(optimizer, plain, **kwargs)

    def _end_if_all_stepped(self) -> None:
        self._found.write(self._folder)
        if all(id(known) in self._stepped for known in self._optimizers()):
            self._end_here()

    def _note_step(
        self, optimizer: torch.optim.Optimizer, frame: FrameType, *, closure: bool
    ) -> None:
        if id(optimizer) in self._stepped:
            return
        self._stepped.add(id(optimizer))
        places, own = ScriptPlaces(frame), ScriptPlaces(frame).own(frame)
        index = next(i for i, known in enumerate(self._optimizers()) if known is optimizer)
        node, scaler = step_in(own[0], optimizer) if own else (None, False)
        self._found.steps.append(
            FoundStep(
                optimizer=index,
                place=places.of(own[0], node) if own else None,
                scaler=scaler,
                closure=closure,
                library=places.library(frame),
            )
        )

    def _end_here(self) -> NoReturn:
        self._found.complete = True
        self._found.write(self._folder)
        raise SystemExit(0)  # all was seen: the script ends here, and has not failed
