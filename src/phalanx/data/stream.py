"""Samples that come one after another, without numbers: an ``IterableDataset`` or a generator.

Every worker reads the whole stream, and keeps its own samples. So each sample is trained exactly
once, if the stream is the same on all workers: therefore its random numbers (Python's, NumPy's and
torch's) are seeded by (seed, epoch), apart from those of the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.data.augment import hashed
from phalanx.data.lazy import (
    LoaderOptions,
    generator_states,
    kept_generators,
    seed_generators,
    set_generators,
)
from phalanx.data.reader import Reader

Stream = Callable[[], Iterable[Any]]
COUNT_SECONDS = 60.0


class StreamedSamples(Reader):
    shuffle = background = False
    was_counted = True
    """Set if counting may have read the whole stream, so that it is not counted again."""

    def __init__(self, stream: Stream, length: int | None, seed: int, options: LoaderOptions):
        self._stream, self._seed, self._collate = stream, seed, options.collate
        self.batch, self.drop_last = options.batch, options.drop_last
        self.pins = options.pins
        self._epoch, self._next = -1, 0
        self._iterator: Iterator[Any] = iter(())
        self._says_length, self._more = length is not None, False
        self._length = self._counted() if length is None else length
        if self._length == 0:
            raise InputError("the data is empty", "Give at least one sample.")

    def _counted(self) -> int:
        until, count = time.monotonic() + COUNT_SECONDS, 0
        for count, _ in enumerate(self._from_start(0), 1):
            if time.monotonic() > until:
                raise InputError(
                    f"the data stream has no __len__, and did not end within {COUNT_SECONDS:.0f} s "
                    f"({count:,} samples)",
                    "Use an IterableDataset with __len__: the number of samples in an epoch.",
                )
        return count

    @property
    def note(self) -> str:
        more = f"; it gives more than its __len__ of {self._length:,}: the rest is left out"
        return (
            "each worker reads the whole data stream, and trains on its part of the samples"
            + more * self._more
        )

    def __len__(self) -> int:
        return self._length

    def fetch(self, indices: Tensor, epoch: int) -> Any:
        samples = [self._sample(place, epoch) for place in indices.tolist()]
        if self._next == self._length and next(self._iterator, self) is not self:
            self._next, self._more = self._length + 1, True
            if not self._says_length:
                raise InputError(
                    f"the stream of data gave {self._length:,} samples when it was counted, and "
                    "more in this epoch",
                    "Let it give equally many in each epoch, or give it __len__.",
                )
        return self._collate(samples)

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        """The first sample only: later ones cost all before them."""
        return (self._sample(place, 0) for place in places if place == 0)

    def _sample(self, place: int, epoch: int) -> Any:
        if epoch != self._epoch or place < self._next:
            self._iterator, self._epoch, self._next = self._from_start(epoch), epoch, 0
        for sample in self._iterator:
            self._next += 1
            if self._next > place:
                return sample
        if not self._next:
            raise InputError(
                "the data stream gives no samples when it is read again: its iterator is used up",
                "Make the iterator anew in each call of __iter__, or of the generator function.",
            )
        raise InputError(
            f"the data stream ended after {self._next} of {self._length} samples",
            "Give every epoch the same number of samples; __len__, if there is one, must match it.",
        )

    def _from_start(self, epoch: int) -> Iterator[Any]:
        """Starts the stream with its own seeded random numbers, and keeps their state for it."""
        with kept_generators():
            seed_generators(int(hashed(np.zeros(1, np.uint64), self._seed, epoch)[0]))
            iterator = iter(self._stream())
            states = generator_states()
        while True:
            with kept_generators():
                set_generators(states)
                try:
                    sample = next(iterator)
                except StopIteration:
                    return
                states = generator_states()
            yield sample
