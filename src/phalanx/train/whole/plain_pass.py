"""Reads one pass over a script's own loader as the script alone would; or counts steps on batches
that the script makes itself, about which nothing else is known.

Those are taken in passes of so many steps, so that such a training has figures, checkpoints and
places where it can be stopped.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, default_collate

from phalanx.data.reader import Batch, Reader
from phalanx.train.loop.segments import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.step.stepper import watch_backward
from phalanx.train.whole.row_plan import rows_in
from phalanx.train.whole.whole_engine import WholeEngine

K = TypeVar("K")
UNKNOWN = 1 << 40
"""The batches of a loader that does not say how many it has."""


class _Places:
    """Stands in for sample numbers, which are not used because the loader has its own order."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: slice) -> tuple[()]:
        return ()


class PlainPass(Reader):
    """A pass over a script's loader. If batches differ in size, each counts as one sample."""

    shuffle = background = drop_last = False

    def __init__(self, samples: int, batch: int, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self.batches: Iterator[Any] | None = None
        self.batch = batch
        self.order: Any = _Places(samples)
        self.left = False
        """Whether the script has left its loop, perhaps to continue with the same iterator."""

    @staticmethod
    def of(loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> PlainPass:
        return PlainPass(*_size_of(loader), partial(begun, loader, plain))

    @staticmethod
    def of_steps(count: int) -> PlainPass:
        """Make a pass of so many steps on batches that the script makes."""
        steps = PlainPass(count, 1, lambda: itertools.repeat(None, count))
        steps.start()
        return steps

    def start(self) -> None:
        """Begin to read. A child that reads for itself must be forked before: a loader's processes
        and queues belong to one process."""
        self.batches = self._begin()

    def __len__(self) -> int:
        return len(self.order)

    def fetch(self, indices: Tensor, epoch: int) -> Batch:
        raise NotImplementedError  # the loader is read in its own order

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        return iter(())

    def stream(
        self, orders: Iterable[tuple[K, Tensor]], epoch: int
    ) -> Iterator[tuple[K, Batch | None]]:
        for key, _ in orders:
            try:
                batch = next(self.rest())
            except StopIteration:
                return
            yield key, batch
        for _ in () if self.left else self.rest():  # the script's loop ends here
            raise RuntimeError("phalanx: a DataLoader has given more batches than its length says")

    def rest(self) -> Iterator[Any]:
        return iter(()) if self.batches is None else self.batches

    def forget(self) -> None:
        """Drop the iterator, as the script did, so that its loader ends its processes."""
        self.left, self.batches = True, None


def begun(loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begin ``plain``, torch's own ``iter(loader)``; gather tensors in memory by the batch instead
    of by the sample, with the same draws of random numbers at the same moments."""
    sampler: Any = loader.batch_sampler
    own = loader.num_workers or sampler is None or type(loader) is not DataLoader
    if own or type(loader.dataset) is not TensorDataset or loader.pin_memory:
        return plain()
    if loader.collate_fn is not default_collate:
        return plain()
    tensors = loader.dataset.tensors
    if not all(t.device.type == "cpu" and t.layout == torch.strided for t in tensors):
        return plain()
    going = iter(sampler)  # a sampler that draws does so first, then torch draws for its processes
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return _gathered(going, tensors)


def _gathered(batches: Iterator[Any], tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for numbers in batches:
        places = torch.as_tensor(list(numbers))
        yield [tensor.detach()[places] for tensor in tensors]


def _size_of(loader: DataLoader[Any]) -> tuple[int, int]:
    """Return the samples of a pass, and of a batch."""
    with suppress(TypeError, NotImplementedError):
        batches = len(loader)
        if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
            return batches, 1
        samples = len(loader.sampler)  # type: ignore[arg-type]
        size = loader.batch_size
        return (batches * size if loader.drop_last else samples), size
    return UNKNOWN, 1


FIRST, MOST = 50, 800
"""Steps of the first pass, and most of a later one; each is twice as long as the one before."""
_END = object()


class OwnBatches:
    def __init__(self, parts: WorkerParts, loop: TrainingLoop) -> None:
        self._steps, self._stopwatch = parts.steps, parts.stopwatch
        self._loop, self._engine = loop, parts.trained.engine
        self._models = {id(model) for model in parts.trained.models}
        self._length = FIRST
        self._pass: Iterator[Any] | None = None
        self._rows, self._counting = 0, False

    def enter(self) -> None:
        """Note that the script is training outside of any loop over a loader."""
        if self._pass is None:
            self._steps.leave_scalers()
            self._count_rows()
            plain = PlainPass.of_steps(self._length)
            self._length = min(MOST, 2 * self._length)
            self._pass = self._loop.through_adopted(plain, plain.order, 1)
            next(self._pass)

    @property
    def under_way(self) -> bool:
        return self._pass is not None

    def _count_rows(self) -> None:
        """Count the rows of the models' inputs, if one worker computes everything."""
        if self._counting or isinstance(self._engine, WholeEngine):
            return
        self._counting, me = True, threading.get_ident()

        def count(module: nn.Module, given: Any) -> None:
            if id(module) in self._models and threading.get_ident() == me:
                self._rows = max(self._rows, rows_in(given))

        register_module_forward_pre_hook(count)

    def step(self, optimizer: torch.optim.Optimizer, *, made: bool = False) -> None:
        """Take a step; ``made``: only count it, because the script took it."""
        self.enter()
        assert self._pass is not None
        engine = self._engine
        rows = engine.rows_since_step() if isinstance(engine, WholeEngine) else self._rows
        self._stopwatch.recount(rows)
        self._rows = 0
        if made:
            self._steps.note()
        else:
            self._steps.step(optimizer)
        if isinstance(engine, WholeEngine) and not self._loop.own_steps:
            engine.align()  # this step was computed before the workers had joined
        self._loop.own_steps += 1
        if next(self._pass, _END) is _END:
            self._pass = None
            self.enter()

    def follow_losses(self, stand_in: torch.optim.Optimizer) -> None:
        """Follow a script that updates its parameters itself: the next loss ends a step."""
        looks, counted = watch_backward(None), self._loop.own_steps

        def look(loss: torch.Tensor, factor: torch.Tensor | None) -> None:
            nonlocal counted
            if counted == self._loop.own_steps and self.under_way:
                self.step(stand_in)  # unless an optimizer that was made meanwhile has stepped
            counted = self._loop.own_steps
            if looks is not None:
                looks(loss, factor)

        watch_backward(look)

    def leave(self) -> None:
        """Note that the script begins a loop over a loader, or has ended."""
        begun, self._pass = self._pass, None
        if begun is not None:
            begun.close()  # type: ignore[attr-defined]
