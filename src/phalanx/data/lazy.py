"""Datasets that make their samples one by one, and what a ``DataLoader`` says about them.

A dataset's own random transforms (Python's, NumPy's and torch's generators) are seeded by
(seed, epoch, sample), as augmentation is, so that they do not depend on who reads.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from phalanx.core.errors import InputError
from phalanx.data.augment import Augment, Draws, augmented, hashed

if TYPE_CHECKING:
    from phalanx.data.persistent_loader import PersistentLoader

K = TypeVar("K")
Keys = list[int]
"""An epoch, then the samples of a batch in it."""


@dataclass(frozen=True)
class LoaderOptions:
    """What is kept of a script's DataLoader."""

    shuffle: bool = True
    batch: int | None = None
    drop_last: bool = False
    collate: Callable[[Any], Any] = default_collate
    processes: int = 0
    prefetch_factor: int | None = None
    timeout: float = 0.0
    context: Any = None
    prepare_process: Callable[[int], None] | None = None
    persistent: PersistentLoader | None = None
    """The loader that keeps its processes, with ``persistent_workers``."""
    pins: bool = False
    """Whether the loader yields batches in pinned memory."""


def loader_options(loader: DataLoader[Any]) -> LoaderOptions:
    """The options of ``loader``; refuse a loader that divides samples among workers itself."""
    if isinstance(loader.dataset, IterableDataset):
        if loader.batch_size is None:
            raise _refused("no batch size")
        return replace(options_of(loader), shuffle=False, drop_last=loader.drop_last)
    if type(loader.batch_sampler) is not BatchSampler:
        raise _refused("its own batch_sampler" if loader.batch_sampler else "no batch size")
    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler):
        raise _refused(f"a {type(sampler).__name__}")
    if isinstance(sampler, RandomSampler) and (
        sampler.replacement or sampler.num_samples != len(sampler.data_source)
    ):
        raise _refused("a RandomSampler that does not read each sample once")
    shuffle = isinstance(sampler, RandomSampler)
    return replace(options_of(loader), shuffle=shuffle, drop_last=loader.drop_last)


def options_of(loader: DataLoader[Any]) -> LoaderOptions:
    """How ``loader`` puts batches together; which samples are in them is left open."""
    persistent = None
    if loader.persistent_workers:
        from phalanx.data.persistent_loader import PersistentLoader

        persistent = PersistentLoader.of(loader)
    return LoaderOptions(
        batch=loader.batch_size,
        collate=loader.collate_fn,
        processes=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
        context=loader.multiprocessing_context,
        prepare_process=loader.worker_init_fn,
        persistent=persistent,
        pins=loader.pin_memory and torch.cuda.is_available(),
    )


def _refused(what: str) -> InputError:
    return InputError(
        f"the DataLoader has {what}, but Phalanx decides which worker reads which sample",
        "Create it with shuffle=True or shuffle=False only, or pass its dataset.",
    )


class LazyReader:
    """A map-style dataset, read sample by sample.

    Without loader processes it reads in the calling thread, as a DataLoader does: a dataset may
    use generators that the training uses too.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int = 0,
        augment: Augment | None = None,
        options: LoaderOptions | None = None,
    ) -> None:
        self._options = options or LoaderOptions()
        self._seeded = Seeded(dataset, seed)
        self._seed, self._augment = seed, augment
        self._length = _length(dataset)
        self.shuffle, self.batch = self._options.shuffle, self._options.batch
        self.drop_last = self._options.drop_last
        processes, pins = self._options.processes > 0, self._options.pins
        # The processes read ahead; a thread that only waits for them would slow down the training.
        self.background = processes and augment is not None
        self.pins = pins and not processes  # torch's own thread pins what they make

    def __len__(self) -> int:
        return self._length

    def fetch(self, indices: Tensor, epoch: int) -> Any:
        with kept_generators():
            samples = self._seeded.__getitems__([epoch, *indices.tolist()])
        return self._finish(self._options.collate(samples), indices, epoch)

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        """Reads in a process of the loader, if there are any: this one may not open their files."""
        keys = [[0, place] for place in places]
        if self._options.processes:
            one = replace(self._options, processes=1, collate=itemgetter(0), pins=False)
            yield from self._loader(keys, one)
            return
        for key in keys:
            with kept_generators():
                sample = self._seeded.__getitems__(key)[0]
            yield sample

    def stream(self, orders: Iterable[tuple[K, Tensor]], epoch: int) -> Iterator[tuple[K, Any]]:
        """See ``Reader``; the batches are made ahead by the loader's processes, if it has any."""
        if self._options.processes == 0:
            for key, indices in orders:
                yield key, self.fetch(indices, epoch) if len(indices) else None
            return
        from phalanx.data.loader_process import ToPin, begun

        taken = _Taken(orders, epoch)
        kept, make = self._options.persistent, self._loader
        found = begun(make(taken)) if kept is None else kept.read(taken, make, self._seed)
        try:
            for batch in found:
                yield from taken.without_indices()
                key, indices = taken.waiting.popleft()
                self._keep_threads()
                made = batch.batch if isinstance(batch, ToPin) else batch  # torch did not pin it
                yield key, self._finish(made, indices, epoch)
        finally:
            self._keep_threads()
        yield from taken.without_indices()

    def _keep_threads(self) -> None:
        """Keep torch's number of threads; its pinning thread changes it for later threads."""
        if self._options.pins:
            torch.set_num_threads(torch.get_num_threads())

    def _loader(
        self, batches: Iterable[Keys], options: LoaderOptions | None = None, *, keep: bool = False
    ) -> DataLoader[Any]:
        from phalanx.data.loader_process import Prepare, collated_to_pin

        options = options or self._options
        collate, threads = options.collate, torch.get_num_threads()
        if options.pins:
            collate = functools.partial(collated_to_pin, collate, threads)
        return DataLoader(
            self._seeded,
            batch_sampler=batches,
            collate_fn=collate,
            num_workers=options.processes,
            prefetch_factor=options.prefetch_factor,
            timeout=options.timeout,
            multiprocessing_context=options.context,
            worker_init_fn=Prepare(
                options.prepare_process, new_tensors=options.collate is default_collate
            ),
            persistent_workers=keep,
            pin_memory=options.pins,
            # Not drawn from the training's generator, which must not depend on who has loaders.
            generator=torch.Generator().manual_seed(self._seed),
        )

    def _finish(self, batch: Any, indices: Tensor, epoch: int) -> Any:
        if self._augment is None:
            return batch
        instead = "Augment in the dataset's __getitem__, or in the DataLoader's collate_fn."
        return augmented(batch, self._augment, Draws(self._seed, epoch, indices), instead)


class Seeded(Dataset[Any]):
    """A dataset whose samples each have random numbers of their own, in each epoch."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: Keys) -> list[Any]:
        epoch, *samples = keys
        words = hashed(np.array(samples, np.uint64), self.seed, epoch).tolist()
        return [self._seeded(*one) for one in zip(samples, words, strict=True)]

    def _seeded(self, sample: int, word: int) -> Any:
        seed_generators(word)
        return self.dataset[sample]


def seed_generators(word: int) -> None:
    """Seeds the generators of Python, NumPy and torch's CPU with 64 bits."""
    random.seed(word)
    np.random.seed(word & 0xFFFFFFFF)
    torch.default_generator.manual_seed(word & (1 << 63) - 1)


def generator_states() -> tuple[Any, Any, Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_generators(states: tuple[Any, Any, Tensor]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Restores the states of the random number generators at the end."""
    before = generator_states()
    try:
        yield
    finally:
        set_generators(before)


class _Taken(Generic[K]):
    """The keys of the batches that the loader's processes are to make."""

    def __init__(self, orders: Iterable[tuple[K, Tensor]], epoch: int) -> None:
        self.waiting: deque[tuple[K, Tensor]] = deque()
        self._orders = orders
        self._epoch = epoch

    def __iter__(self) -> Iterator[Keys]:
        for key, indices in self._orders:
            self.waiting.append((key, indices))
            if len(indices):
                yield [self._epoch, *indices.tolist()]

    def without_indices(self) -> Iterator[tuple[K, None]]:
        """The next orders up to the first that has indices."""
        while self.waiting and not len(self.waiting[0][1]):
            yield self.waiting.popleft()[0], None


def _length(dataset: Any) -> int:
    try:
        length = len(dataset)
    except TypeError as error:
        raise InputError(
            f"the dataset {type(dataset).__name__} has no length",
            "Give it __len__ and __getitem__ (a map-style Dataset).",
        ) from error
    if length == 0:
        raise InputError("the data is empty", "Give at least one sample.")
    return length
