"""Shares out one pass over the script's own ``DataLoader``: its samples in its own order.

Inside a pass, the script's own generators have the states that they would have in one process, even
if the script draws from them as well (evaluates on the same loader).
"""

from __future__ import annotations

import math
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from phalanx.core.errors import InputError
from phalanx.data.lazy import Seeded, options_of
from phalanx.data.reader import Reader, reader_of
from phalanx.sync.arena.arena import Locks
from phalanx.train.engine.engine import Engine
from phalanx.train.proof.checks import Checks
from phalanx.train.start.seed import Streams

_PASSES_APART = 4
"""The most passes by which free-running workers may differ for their orders to be compared."""


@dataclass(frozen=True)
class LoaderPass:
    """The sample numbers of all batches, one after another, and the sizes of the batches."""

    order: Tensor
    batch: int
    own: OwnGenerators


def is_ours(loader: DataLoader[Any]) -> bool:
    """Whether a reader of Phalanx made this loader."""
    return isinstance(loader.dataset, Seeded)


def order_of(loader: DataLoader[Any], *, again: bool = False) -> LoaderPass:
    """Draw the order of a pass as ``iter(loader)`` does in one process: what the sampler draws at
    its start, a seed for loader processes, then what it draws for each batch. ``again``: the
    processes exist already and need no seed."""
    sampler = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset):
        raise InputError(
            "the script trains on an IterableDataset, which Phalanx cannot share out",
            "Use a map-style Dataset (__getitem__), or run the script alone, with python.",
        )
    if sampler is None:
        raise InputError(
            "the DataLoader that the script trains on has batch_size=None",
            "Give it a batch_size, or run the script alone, with python.",
        )
    own = OwnGenerators(loader, partial(_begun, loader, sampler, again))
    promised = samples = 0
    with suppress(Exception):  # some have no length
        samples = 10 * len(loader.dataset)  # type: ignore[arg-type]
        promised = len(loader)
    # The length may be too small, so read beyond it; or it means "endless", as 10**10 does.
    most = 100_000 + samples, max(1 << 28, samples)
    numbers, ends = array("q"), [0]
    for batch in own.draw():
        numbers.extend(batch)
        ends.append(len(numbers))
        if len(numbers) > most[len(ends) - 1 <= promised]:
            raise InputError(
                f"the DataLoader's sampler has given {len(numbers)} samples in one pass, and may "
                "never end; Phalanx shares out whole passes",
                "Use a sampler that ends, or run the script alone, with python.",
            )
    own.checksum = zlib.crc32(numbers)
    sizes = np.diff(ends)
    if not numbers or (sizes[:-1] != sizes[0]).any() or sizes[-1] > sizes[0]:
        raise InputError(
            "the DataLoader's batch_sampler makes "
            + ("batches of different sizes" if numbers else "no batches"),
            "Phalanx shares out batches of one size (a last one may be smaller): use a batch "
            "sampler with one size, or run the script alone, with python.",
        )
    order = torch.from_numpy(np.frombuffer(numbers, np.int64))
    return LoaderPass(order, int(sizes[0]), own)


def _begun(loader: DataLoader[Any], sampler: Any, again: bool) -> Iterator[Any]:
    going: Iterator[Any] = iter(sampler)
    if not again:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if loader.num_workers > 0:
            going = iter(sampler)  # torch begins again once it has its processes
    return going


class LoaderDraws:
    """Draws the random numbers that loaders draw to begin a pass: with ``persistent_workers``, a
    seed for their processes in the first pass only."""

    def __init__(self) -> None:
        self._begun = weakref.WeakSet[DataLoader[Any]]()

    def order_of(self, loader: DataLoader[Any]) -> LoaderPass:
        drawn = order_of(loader, again=loader in self._begun or loader._iterator is not None)
        if loader.persistent_workers:
            self._begun.add(loader)
        return drawn

    def as_alone(
        self, loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]
    ) -> Callable[[], Iterator[Any]]:
        """Return ``plain``, torch's ``iter(loader)``, without its draws for new processes."""

        def begin() -> Iterator[Any]:
            own = loader.generator
            loader.generator = torch.Generator()  # for the processes' seed
            try:
                return plain()
            finally:
                loader.generator = own

        return begin if loader in self._begun and loader._iterator is None else plain


class ComparedOrders:
    """Checks that all workers share out the same samples in each pass."""

    def __init__(self, engine: Engine) -> None:
        self._engine, shape = engine, (engine.workers * engine.copies, _PASSES_APART, 2)
        cells = engine.region("orders of passes", math.prod(shape), torch.int64)
        self._orders = cells.view(shape).numpy()
        """The number of each worker's last passes, and a checksum of their samples' order."""

    def compare(self, number: int, drawn: LoaderPass) -> None:
        checksum = zlib.crc32(drawn.order.numpy().tobytes(), drawn.batch)
        with self._engine.lock(Locks.DATA):  # the last worker to come sees all others
            rows = self._orders[:, number % _PASSES_APART]
            rows[self._engine.rank + self._engine.copy] = (number, checksum)
            others = rows.copy()
        if any(row[0] == number and row[1] != checksum for row in others):
            raise InputError(
                "the workers shuffle the samples differently",
                "Shuffle with torch's random numbers, or with a generator that has a fixed seed.",
            )


def read_by_number(loader: DataLoader[Any], seed: int, *, alone: bool = False) -> Reader:
    """Return a reader of the loader's samples by number; ``alone``: without processes."""
    options = options_of(loader)
    options = replace(options, processes=0, persistent=None) if alone else options
    return reader_of(loader.dataset, options, seed=seed)


def alone_pass(
    reader: Reader, drawn: LoaderPass, epoch: int, given: int, checks: Checks, streams: Streams
) -> Iterator[Any]:
    """Yield the batches of a child that goes on alone: whole ones, in the order of all workers,
    after those that were ``given`` to the worker."""
    orders = enumerate(drawn.order[given * drawn.batch :].split(drawn.batch))
    streams.enter_pass()
    try:
        for taken, (_, batch) in enumerate(reader.stream(orders, epoch), given + 1):
            drawn.own.give(taken)
            checks.given()
            yield batch
        drawn.own.end()
    finally:
        streams.leave_pass()


class OwnGenerators:
    """Keeps the script's own generators as in one process, except torch's default one, which has
    ``Streams``. ``begin`` draws as ``iter(loader)`` does, and returns the batches' sample
    numbers."""

    def __init__(self, loader: DataLoader[Any], begin: Callable[[], Iterator[Any]]) -> None:
        sampler: Any = loader.batch_sampler
        holders = (loader, loader.sampler, sampler, getattr(sampler, "sampler", None))
        given = [getattr(holder, "generator", None) for holder in holders]
        own = {id(one): one for one in given if isinstance(one, torch.Generator)}
        own.pop(id(torch.default_generator), None)
        self._generators, self._begin = list(own.values()), begin
        self.any = bool(own)
        self._ahead = loader.num_workers * (loader.prefetch_factor or 0)
        """Batches that are asked of loader processes before the script takes the first one."""
        self._first = torch.default_generator.get_state(), self._now()
        self._states = list[tuple[int, list[Tensor]]]()
        """For each change of the generators' states: after how many batches, and the states."""
        self._at = self.checksum = 0
        self._followed = True

    def draw(self) -> Iterator[Any]:
        """Yield the batches of a pass."""
        batches = self._begin()
        self._states = [(0, self._now())]
        yield from self._noted(batches, 0)
        self._put(0)

    def give(self, batches: int) -> None:
        """Note that the script has taken so many batches, and may draw before it takes another."""
        if self._followed and self._due(batches) > self._at:
            if not _same(self._now(), self._states[self._at][1]):
                self._draw_rest_again()
            self._put(self._due(batches))

    def end(self) -> None:
        """Note that the script has found no more batches."""
        self.give(self._states[-1][0])

    def leave(self, batches: int) -> None:
        """Note that the script takes no more than so many batches."""
        self.give(batches)
        self._followed = False

    def _due(self, batches: int) -> int:
        reached, due = batches + self._ahead, self._at
        while due + 1 < len(self._states) and self._states[due + 1][0] <= reached:
            due += 1
        return due

    def _noted(self, batches: Iterator[Any], given: int) -> Iterator[Any]:
        while (given := given + 1) and (batch := next(batches, None)) is not None:
            self._note(given)
            yield batch
        self._note(given)  # what a sampler draws when it has no more batches to give

    def _note(self, given: int) -> None:
        if not _same(now := self._now(), self._states[-1][1]):
            self._states.append((given, now))

    def _draw_rest_again(self) -> None:
        """Draw the rest of the pass again, because the script has drawn from the same generators.
        The batches must stay as they are: the workers share them out already."""
        now, common = self._now(), torch.default_generator.get_state()
        given = self._states[self._at][0]
        torch.default_generator.set_state(self._first[0])
        self._set(self._first[1])
        batches = self._begin()
        numbers = array("q", chain.from_iterable(islice(batches, given)))
        self._set(now)
        self._states[self._at :] = [(given, now)]
        numbers.extend(chain.from_iterable(self._noted(batches, given)))
        torch.default_generator.set_state(common)
        if zlib.crc32(numbers) != self.checksum:
            raise InputError(
                "the script draws from the generator of its DataLoader in the middle of a pass (an "
                "evaluation on the same loader?), and the loader's next batches depend on it",
                "Give the other DataLoader a generator of its own, or run with --view whole.",
            )

    def _now(self) -> list[Tensor]:
        return [one.get_state() for one in self._generators]

    def _put(self, place: int) -> None:
        self._at = place
        self._set(self._states[place][1])

    def _set(self, states: Sequence[Tensor]) -> None:
        for one, state in zip(self._generators, states, strict=True):
            one.set_state(state)


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, some, others))
