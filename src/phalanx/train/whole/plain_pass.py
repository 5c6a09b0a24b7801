"""One pass over a script's own loader, read as the script alone would read it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, default_collate

from phalanx.data.reader import Batch, Reader

K = TypeVar("K")
UNKNOWN = 1 << 40
"""Batches of a loader that does not say how many it has."""


class _Places:
    """Numbers that nobody reads by: the loader has an order of its own."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: slice) -> tuple[()]:
        return ()


class PlainPass(Reader):
    """A pass over a script's loader. If its batches differ in size, each counts as a sample."""

    shuffle = background = drop_last = False

    def __init__(self, samples: int, batch: int, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self.batches: Iterator[Any] | None = None
        self.batch = batch
        self.order: Any = _Places(samples)
        self.left = False
        """Whether the script has left its loop, perhaps to go on with the same iterator."""

    @staticmethod
    def of(loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> PlainPass:
        return PlainPass(*_size_of(loader), partial(begun, loader, plain))

    @staticmethod
    def of_steps(count: int) -> PlainPass:
        """Steps on batches that the script makes."""
        steps = PlainPass(count, 1, lambda: itertools.repeat(None, count))
        steps.start()
        return steps

    def start(self) -> None:
        """Begin to read, but only after a child that reads for itself has been forked: a loader's
        processes and their queues belong to one process."""
        self.batches = self._begin()

    def __len__(self) -> int:
        return len(self.order)

    def fetch(self, indices: Tensor, epoch: int) -> Batch:
        raise NotImplementedError  # it is read in its own order

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
        for _ in () if self.left else self.rest():  # it ends as in a loop of the script
            raise RuntimeError("phalanx: a DataLoader has given more batches than its length says")

    def rest(self) -> Iterator[Any]:
        return iter(()) if self.batches is None else self.batches

    def forget(self) -> None:
        """The script has let go of the iterator: loaders end their processes with it."""
        self.left, self.batches = True, None


def begun(loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """``plain``, torch's own ``iter(loader)``; tensors in memory are gathered by the batch instead
    of sample by sample, with the same draws of random numbers at the same moments."""
    sampler: Any = loader.batch_sampler
    own = loader.num_workers or sampler is None or type(loader) is not DataLoader
    if own or type(loader.dataset) is not TensorDataset or loader.pin_memory:
        return plain()
    if loader.collate_fn is not default_collate:
        return plain()
    tensors = loader.dataset.tensors
    if not all(t.device.type == "cpu" and t.layout == torch.strided for t in tensors):
        return plain()
    going = iter(sampler)  # one that draws does so first, and then torch for its processes
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return _gathered(going, tensors)


def _gathered(batches: Iterator[Any], tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for numbers in batches:
        places = torch.as_tensor(list(numbers))
        yield [tensor.detach()[places] for tensor in tensors]


def _size_of(loader: DataLoader[Any]) -> tuple[int, int]:
    """Samples of a pass, and of a batch."""
    with suppress(TypeError, NotImplementedError):
        batches = len(loader)
        if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
            return batches, 1
        samples = len(loader.sampler)  # type: ignore[arg-type]
        size = loader.batch_size
        return (batches * size if loader.drop_last else samples), size
    return UNKNOWN, 1
