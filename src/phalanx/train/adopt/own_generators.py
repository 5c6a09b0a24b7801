"""Generators of the script's own, from which a loader draws: inside a pass they stand where they
would stand alone, also where the script draws from them as well (evaluates on the same loader)."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from phalanx.core.errors import InputError


class OwnGenerators:
    """torch's common one is not among them: it has streams of its own.

    ``begin``: what the loader draws when it is asked for an iterator; gives the batches' numbers.
    """

    def __init__(self, loader: DataLoader[Any], begin: Callable[[], Iterator[Any]]) -> None:
        sampler: Any = loader.batch_sampler
        holders = (loader, loader.sampler, sampler, getattr(sampler, "sampler", None))
        given = [getattr(holder, "generator", None) for holder in holders]
        own = {id(one): one for one in given if isinstance(one, torch.Generator)}
        own.pop(id(torch.default_generator), None)
        self._generators, self._begin = list(own.values()), begin
        self.any = bool(own)
        self._ahead = loader.num_workers * (loader.prefetch_factor or 0)
        """Batches that processes are asked for before the script takes the first one."""
        self._first = torch.default_generator.get_state(), self._now()
        self._states = list[tuple[int, list[Tensor]]]()
        """The generators' states: the first ones, then each change with its number of batches."""
        self._at = self.checksum = 0
        self._followed = True

    def draw(self) -> Iterator[Any]:
        """Draw the batches of a pass, noting the states of the generators."""
        batches = self._begin()
        self._states = [(0, self._now())]
        yield from self._noted(batches, 0)
        self._put(0)

    def give(self, batches: int) -> None:
        """Set the states as after ``batches``, which the script has taken: it may draw now."""
        if self._followed and self._due(batches) > self._at:
            if not _same(self._now(), self._states[self._at][1]):
                self._draw_rest_again()
            self._put(self._due(batches))

    def end(self) -> None:
        """Set the states as after the last batch: the script has found that there are no more."""
        self.give(self._states[-1][0])

    def leave(self, batches: int) -> None:
        """Set the states as after ``batches``, after which the script leaves the pass."""
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
        self._note(given)  # what a sampler draws when it has no more to give

    def _note(self, given: int) -> None:
        if not _same(now := self._now(), self._states[-1][1]):
            self._states.append((given, now))

    def _draw_rest_again(self) -> None:
        """The script has drawn as well, so the rest of the pass draws something else than it did:
        that may not change its batches, which the workers share out already."""
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
