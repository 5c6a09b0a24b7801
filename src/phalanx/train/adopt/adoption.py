"""``Adoption``: one worker's side of a training whose script does not know of it.

Optimizers are remembered as they are made. When the script begins to go through a ``DataLoader``
while its models train, the worker joins with the models that own the optimizers' parameters; the
loader's batches are shared out in the loader's own order, and ``optimizer.step()`` becomes the
exchange. Every other pass over data is an evaluation, of which each worker sees everything.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from phalanx.core.context import call_at_end
from phalanx.core.errors import InputError, NotFinite, PeerLost
from phalanx.core.settings import RunSettings
from phalanx.data.reader import Reader
from phalanx.train.adopt.found_models import describe, models_of, parameters_of
from phalanx.train.adopt.loader_pass import LoaderPass, is_ours, order_of, read_by_number
from phalanx.train.adopt.random_streams import AdoptedSeeds, Streams
from phalanx.train.adopt.script_length import passes_of
from phalanx.train.loop.assembly import build_worker
from phalanx.train.loop.stretches import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.start.environment import detect

_OURS = str(Path(__file__).parents[2])
_PEEK = re.compile(r"\bnext\s*\(\s*iter\s*\(")
_ALONE = "or train alone: --workers 1 --strategy single."


class Adoption:
    def __init__(self, chosen: RunSettings, workers: int) -> None:
        self._chosen, self._workers = chosen, workers
        self._made: list[weakref.ref[torch.optim.Optimizer]] = []
        self._training: _Training | None = None
        self._joining = False
        self.streams = Streams()

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """The script has made an optimizer."""
        if not self._joining:
            self._made.append(weakref.ref(optimizer))

    # -- steps -------------------------------------------------------------------------------

    def passes_on(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step of this optimizer is its own: not the script's, or of one worker."""
        training = self._training
        return self._joining or (training is not None and bool(training.parts.steps.ours))

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        plain: Callable[..., Any],
        closure: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        training = self._training
        if training is None or not training.knows(optimizer) or not training.under_way:
            if self._workers > 1:
                raise self._stray(training, optimizer)
            return plain(closure, **kwargs) if closure is not None else plain(**kwargs)
        if closure is not None and isinstance(optimizer, torch.optim.LBFGS):
            if self._workers > 1:
                raise InputError(
                    "LBFGS evaluates its closure several times in a step, each on one worker alone",
                    f"Use another optimizer, {_ALONE}",
                )
            return plain(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        training.parts.steps.step(optimizer)
        return loss

    def _stray(self, training: _Training | None, optimizer: torch.optim.Optimizer) -> InputError:
        if training is None or not training.under_way:
            return InputError(
                "the script takes a step on a batch that comes from no DataLoader, so that "
                "Phalanx cannot share it out",
                f"Read the batches from a DataLoader, call phalanx.join in the script, {_ALONE}",
            )
        return InputError(
            f"the script has made another optimizer ({type(optimizer).__name__}) in the middle of "
            "a pass over its data",
            "Make it before the loop over the DataLoader.",
        )

    # -- passes ------------------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """In place of ``iter(loader)``."""
        if is_ours(loader):
            return plain()
        frame = _script_frame()
        if not torch.is_grad_enabled() or _is_peek(frame):
            return self._whole(plain)
        optimizers = self._optimizers()
        if not optimizers:
            return self._whole(plain)
        training = self._training
        current = training is not None and training.is_of(optimizers)
        models = training.models if training is not None and current else models_of(optimizers)
        if not any(model.training for model in models):
            return self._whole(plain)
        if training is not None and training.under_way:
            raise InputError(
                "the script goes through a second DataLoader while it trains on the first",
                "Put both into one Dataset, or evaluate under torch.no_grad() or model.eval().",
            )
        return self._train(loader, models, optimizers, passes_of(frame))

    def _whole(self, plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """All of the data, in the same order on every worker."""
        with self.streams.common():
            found = plain()
            first = next(found, _NOTHING)  # samplers draw when they are first asked
        if first is _NOTHING:
            return iter(())
        return _resumed(first, found)

    def _train(
        self,
        loader: DataLoader[Any],
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        passes: int | None,
    ) -> Iterator[Any]:
        with self.streams.common():
            drawn = order_of(loader)
        if self._training is None or not self._training.is_of(optimizers):
            self._end()
            self._joining = True
            try:
                self._training = self._join(loader, models, optimizers, drawn.batch, passes)
            finally:
                self._joining = False
        return self._training.through(loader, drawn)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that can train something, in the order in which they were made."""
        alive = [o for ref in self._made if (o := ref()) is not None]
        return [o for o in alive if any(p.requires_grad for p in parameters_of([o]))]

    def _join(
        self,
        loader: DataLoader[Any],
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        batch: int,
        passes: int | None,
    ) -> _Training:
        device = parameters_of(optimizers)[0].device
        environment = dataclasses.replace(detect(), device=device)
        data = f"{type(loader.dataset).__name__} of {len(loader.dataset)} samples"  # type: ignore[arg-type]
        parts, loop = build_worker(
            environment, models, optimizers, buffers="auto", loss=self._chosen.loss or "mean",
            trial=None, seeds=AdoptedSeeds.of(self.streams),
            notes=describe(models, optimizers, data, batch, passes),
        )  # fmt: skip
        loop.adopt(self._chosen.epochs or passes)
        call_at_end(self._end)
        return _Training(parts, loop, models, optimizers, passes, self._chosen.seed)

    def _end(self) -> None:
        """Training is over: the script has ended, or trains something else."""
        if self._training is not None:
            self._training.end()
            self._training = None


class _Training:
    """Joined: what is trained, and the passes over its data."""

    def __init__(
        self,
        parts: WorkerParts,
        loop: TrainingLoop,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        passes: int | None,
        seed: int,
    ) -> None:
        self.parts, self.models = parts, models
        self._loop, self._optimizers, self._left, self._seed = loop, list(optimizers), passes, seed
        self._readers: dict[int, tuple[DataLoader[Any], Reader]] = {}
        self.under_way = False
        """Whether the script is inside a pass."""

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(known is optimizer for known in self._optimizers)

    def is_of(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        same = len(optimizers) == len(self._optimizers) and all(map(self.knows, optimizers))
        return same and not self.parts.lifecycle.over

    def through(self, loader: DataLoader[Any], drawn: LoaderPass) -> Iterator[Any]:
        self.under_way = True
        try:
            yield from self._loop.through_adopted(
                self._reader(loader), drawn.order, drawn.batch, drawn.leave
            )
        finally:
            self.under_way = False
            if self._left is not None:
                self._left -= 1
                if self._left == 0 and sys.exc_info()[0] is None:
                    self.end()

    def _reader(self, loader: DataLoader[Any]) -> Reader:
        if id(loader) not in self._readers:  # the loader is kept alive, so its id stays its own
            reader = self.parts.readers.of(read_by_number(loader, self._seed), trains=True)
            self._readers[id(loader)] = loader, reader
        return self._readers[id(loader)][1]

    def end(self) -> None:
        lifecycle = self.parts.lifecycle
        if lifecycle.over or lifecycle.broken():
            return
        try:
            with suppress(PeerLost):  # those it would inform are gone already
                self._loop.finish()
        except NotFinite as error:
            lifecycle.fail(str(error))


_NOTHING = object()


def _resumed(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _script_frame() -> FrameType | None:
    """The newest frame that is not of Phalanx."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame


def _is_peek(frame: FrameType | None) -> bool:
    """Whether it only looks at a first batch, to see what there is: ``next(iter(loader))``."""
    if frame is None:
        return False
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    return bool(_PEEK.search(line))
