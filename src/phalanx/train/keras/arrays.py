"""Reads the data that ``fit`` is given: arrays, by number in the order that Keras itself would
draw, or data that come in batches (``tf.data``, ``PyDataset``, ``DataLoader``, generators).

Samples of the latter have no numbers. Every worker reads every global batch, in the order that the
seed makes the same for all, and takes its rows; a checksum of each epoch compares the orders.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.data.reader import Reader
from phalanx.train.keras.epoch_sync import EpochSync


class ArrayReader(Reader):
    """A :class:`~phalanx.data.reader.Reader` of what an adapter of Keras holds."""

    background, shuffle, drop_last = False, True, False

    def __init__(self, adapter: Any, convert: Callable[[Any], Any]) -> None:
        from keras.src import tree
        from keras.src.trainers.data_adapters import array_slicing

        whole = slice(0, adapter._num_samples)
        inputs = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="numpy")
        self._arrays = tree.map_structure(
            lambda each: each.convert_to_numpy(each[whole]), inputs, none_is_leaf=False
        )
        self._tree, self._samples, self._convert = tree, adapter._num_samples, convert
        self.batch: int | None = adapter.batch_size

    def __len__(self) -> int:
        return int(self._samples)

    def fetch(self, indices: Tensor, epoch: int) -> Any:
        rows = indices.numpy()
        return self._tree.map_structure(
            lambda array: self._convert(array[rows]), self._arrays, none_is_leaf=False
        )

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        leaves = self._tree.flatten(self._arrays)
        return (tuple(array[place] for array in leaves) for place in places)


class ArraySource:
    """Gives all samples in each epoch, in the order that Keras' own iterator draws. That iterator
    runs over numbers of samples, with the same draws as one over the data."""

    weighs = False

    def __init__(self, model: Any, asked: FitArguments, batch: int | None, mirror: Any) -> None:
        from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

        adapter = ArrayDataAdapter(
            asked.x, asked.y, sample_weight=asked.sample_weight, class_weight=asked.class_weight,
            batch_size=asked.batch_size, steps=asked.steps_per_epoch,
        )  # fmt: skip
        reader = self.reader = ArrayReader(adapter, mirror.convert)
        self.batch: int = batch or adapter.batch_size
        numbers = np.arange(len(reader), dtype=np.int64)
        over = dataclasses.replace(
            asked, x=numbers, y=None, sample_weight=None, class_weight=None, batch_size=self.batch
        )
        self._epochs = epochs_of(model, over)
        self.words = f"arrays of {len(reader):,} samples"
        self.steps: int = self._epochs.num_batches
        self.drawn = self.steps
        """Batches of the present epoch; the last epoch may have fewer than ``steps_per_epoch``."""

        build_as_keras(model, self._epochs, lambda found: reader.fetch(_numbers(found), 0))
        spread = torch.linspace(0, len(reader) - 1, min(self.batch, len(reader))).long()
        self.samples = [reader.fetch(torch.arange(len(spread)), 0), reader.fetch(spread, 0)]
        """Two batches of samples: the first ones, and some from all over the data."""
        model._symbolic_build(data_batch=self.samples[0])

    def begin(self, meeting: EpochSync) -> Tensor:
        """Begin an epoch, and return its order, which is the first worker's."""
        self._opened = batches_of(self._epochs)
        found = [_numbers(batch) for batch in islice(self._opened, self.steps)]
        self.drawn, mine = len(found), torch.cat(found)
        order: Tensor = meeting.from_first(mine)
        return order

    def end(self, meeting: EpochSync) -> None:
        next(self._opened, None)  # here Keras draws for the next epoch

    def unpack(self, batch: Any, samples: int) -> tuple[Any, int]:
        return batch, samples


def _numbers(batch: Any) -> Tensor:
    from keras import ops

    (found,) = batch if isinstance(batch, tuple | list) else (batch,)
    return torch.from_numpy(ops.convert_to_numpy(found).reshape(-1).astype(np.int64))


InCommon = Callable[[], AbstractContextManager[None]]
KEPT = 8
"""Global batches that are kept, for a share that is read again."""


@dataclass(frozen=True)
class BatchPart:
    """This worker's rows of one global batch, and how many of them count."""

    batch: Any
    rows: int


class StreamReader(Reader):
    """A :class:`~phalanx.data.reader.Reader` whose numbers are columns of global batches: ``i`` is
    column ``i % batch`` of batch ``i // batch``. A batch that is shorter than the first one is
    divided in the same proportions."""

    background, shuffle, drop_last = False, False, False

    def __init__(
        self,
        batches: int,
        size: int,
        convert: Callable[[Any], Any],
        in_common: InCommon = nullcontext,
    ) -> None:
        """Make the source; within ``in_common`` all workers draw the same random numbers."""
        from keras import ops, tree

        self._in_common = in_common
        self._tree, self._numpy, self._convert = tree, ops.convert_to_numpy, convert
        self._batches, self.batch = batches, size
        self._source: Iterator[Any] = iter(())
        self._kept: deque[tuple[int, Any]] = deque(maxlen=KEPT)
        self._read, self.checksum = 0, 0
        self.again: Callable[[], Iterator[Any]] | None = None
        """Opens the data anew; only set in a profile, where an epoch has no end."""

    def __len__(self) -> int:
        return self._batches * self.batch

    def begin(self, source: Iterator[Any]) -> None:
        """Begin an epoch, whose batches ``source`` gives."""
        self._kept.clear()
        self._read, self.checksum = 0, 0
        self._source = source

    def end(self) -> int:
        """Read to the end of the epoch, past other workers' last rows; return its checksum."""
        while self._read < self._batches:
            self._next()
        with self._in_common():
            next(self._source, None)  # Keras prepares the next epoch here
        return self.checksum

    def fetch(self, indices: Tensor, epoch: int) -> BatchPart:
        """Read rows by number; a free-running worker's rows may be from two batches."""
        first, last = int(indices[0]), int(indices[-1]) + 1
        parts: list[Any] = []
        rows = 0
        for number in range(first // self.batch, (last - 1) // self.batch + 1):
            begin = number * self.batch
            part = self._columns(number, max(first, begin) - begin, min(last - begin, self.batch))
            rows += part[1]
            parts.append(part[0] if part[1] or not parts else None)
        found = [part for part in parts if part is not None]
        joined = self._tree.map_structure(lambda *leaves: self._joined(leaves), *found)
        return BatchPart(joined, rows)

    def _columns(self, number: int, first: int, last: int) -> tuple[Any, int]:
        """Return this worker's rows of a batch, at least one, and how many of them count."""
        whole = self._global_batch(number)
        count = len(next(leaf for leaf in self._tree.flatten(whole) if leaf is not None))
        start, end = (place * count // self.batch for place in (first, last))
        rows = slice(start, end) if end > start else slice(0, 1)
        taken = self._tree.map_structure(lambda leaf: None if leaf is None else leaf[rows], whole)
        return taken, end - start

    def _joined(self, leaves: Sequence[Any]) -> Any:
        if leaves[0] is None:
            return None
        return self._convert(leaves[0] if len(leaves) == 1 else np.concatenate(leaves))

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        return iter(())  # a checksum compares rows later

    def _global_batch(self, number: int) -> Any:
        if number < self._read - KEPT and self.again is not None:
            self.end()
            self.begin(self.again())
        while self._read <= number:
            self._next()
        for known, batch in self._kept:
            if known == number:
                return batch
        raise InputError(
            "the samples of a lost worker cannot be read again: the data are a stream",
            "Continue from the last checkpoint with phalanx resume, or give fit arrays.",
        )

    def _next(self) -> None:
        with self._in_common():
            found = next(self._source, None)
        if found is None:
            raise InputError(
                f"the data ended after {self._read} of {self._batches} batches",
                "Lower steps_per_epoch, or repeat the data: dataset.repeat().",
            )
        batch = self._tree.map_structure(
            lambda leaf: None if leaf is None else np.asarray(self._numpy(leaf)), found
        )
        for leaf in self._tree.flatten(batch):
            if leaf is not None:
                self.checksum = zlib.crc32(_bytes_of(leaf), self.checksum)
        self._kept.append((self._read, batch))
        self._read += 1


def _bytes_of(leaf: Any) -> Any:
    if leaf.dtype.kind == "O":  # TensorFlow's strings
        return b"\0".join(str(value).encode() for value in leaf.reshape(-1))
    return np.ascontiguousarray(leaf).data


class StreamSource:
    weighs = True
    """Whether batches may be shorter than the assignment of samples says."""

    def __init__(
        self,
        model: Any,
        asked: FitArguments,
        mirror: Any,
        in_common: InCommon = nullcontext,
        *,
        measured: bool = False,
    ) -> None:
        """Prepare the data; ``measured``: for a profile of the model's steps."""
        from keras import tree

        self._epochs = epochs_of(model, asked)
        build_as_keras(model, self._epochs, lambda batch: batch)
        opened = batches_of(self._epochs)
        first = next(opened, None)
        if first is None:
            raise InputError("the training data are empty", "Give at least one batch.")
        self.samples = [first]
        model._symbolic_build(data_batch=first)
        self.batch = len(next(leaf for leaf in tree.flatten(first) if leaf is not None))
        batches = self._epochs.num_batches
        if batches is None:
            raise InputError(
                "the data do not say how many batches an epoch has",
                "Give fit steps_per_epoch, or the dataset its length: "
                "dataset.apply(tf.data.experimental.assert_cardinality(n)).",
            )
        self.steps = self.drawn = int(batches)
        self.words = f"{type(asked.x).__name__} of {self.steps:,} batches"
        self.reader = StreamReader(self.steps, self.batch, mirror.convert, in_common)
        if measured:
            self.reader.again = lambda: batches_of(self._epochs)
        self._opened: Iterator[Any] | None = chain([first], opened)

    def begin(self, meeting: EpochSync) -> Tensor:
        self.reader.begin(self._opened or batches_of(self._epochs))
        self._opened = None
        return torch.arange(len(self.reader))

    def end(self, meeting: EpochSync) -> None:
        found = meeting.gather(self.reader.end())
        if len(set(found)) > 1:
            raise InputError(
                "the workers read different data, or read them in different orders",
                "Seed the shuffling: dataset.shuffle(n, seed=0), or keras.utils.set_random_seed(0) "
                "before the data are made.",
            )

    def unpack(self, batch: BatchPart, samples: int) -> tuple[Any, int]:
        return batch.batch, batch.rows


@dataclass
class FitArguments:
    """The arguments of ``fit``."""

    x: Any
    y: Any
    batch_size: int | None
    epochs: int
    verbose: Any
    callbacks: Any
    validation_split: float
    validation_data: Any
    shuffle: Any
    class_weight: Any
    sample_weight: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: Any

    @staticmethod
    def of(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> FitArguments:
        """Bind arguments as ``plain``, Keras' own ``fit``, would understand them."""
        given = inspect.signature(plain).bind(*args, **kwargs)
        given.apply_defaults()
        asked = FitArguments(
            **{field.name: given.arguments[field.name] for field in fields(FitArguments)}
        )
        asked._split()
        return asked

    def _split(self) -> None:
        from keras.src.trainers.data_adapters import array_slicing

        if self.validation_split and self.validation_data is None:
            whole = self.x, self.y, self.sample_weight
            (self.x, self.y, self.sample_weight), self.validation_data = (
                array_slicing.train_validation_split(whole, validation_split=self.validation_split)
            )


_ITERATORS = {
    "torch": "TorchEpochIterator",
    "tensorflow": "TFEpochIterator",
    "jax": "JAXEpochIterator",
}


def epochs_of(model: Any, asked: FitArguments) -> Any:
    """Return Keras' own iterator of the epochs, as its backend has it."""
    from keras import backend

    name = backend.backend()
    kind = getattr(importlib.import_module(f"keras.src.backend.{name}.trainer"), _ITERATORS[name])
    more = {"distribute_strategy": model.distribute_strategy} if name == "tensorflow" else {}
    return kind(
        x=asked.x, y=asked.y, sample_weight=asked.sample_weight, batch_size=asked.batch_size,
        steps_per_epoch=asked.steps_per_epoch, shuffle=asked.shuffle,
        class_weight=asked.class_weight, **more,
    )  # fmt: skip


def batches_of(epochs: Any) -> Iterator[Any]:
    """Yield the batches of one epoch."""
    with epochs.catch_stop_iteration():
        for _, _, found in epochs:
            yield found[0] if isinstance(found, list) else next(found)


def build_as_keras(model: Any, epochs: Any, batch_of: Callable[[Any], Any]) -> None:
    """Take a first batch when Keras itself would, so that the data go on from there. On TensorFlow
    it takes none: the first step builds the model."""
    from keras import backend

    def look() -> Iterator[Any]:
        for found in batches_of(epochs):
            yield 0, 0, [batch_of(found)]

    if backend.backend() != "tensorflow":
        model._symbolic_build(iterator=look())
    epochs.reset()
