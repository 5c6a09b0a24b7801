"""Arrays that ``fit`` is given, read by number, in the order that Keras itself would draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.data.reader import Reader
from phalanx.train.keras.epoch_sync import EpochSync
from phalanx.train.keras.fit_arguments import FitArguments, batches_of, build_as_keras, epochs_of


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
    """In each epoch all samples, in an order that Keras' own iterator draws, over numbers.

    It takes the same random numbers at the same times as that of the data would.
    """

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
        """Batches of the epoch in hand: of ``steps_per_epoch`` the last one may have fewer."""

        build_as_keras(model, self._epochs, lambda found: reader.fetch(_numbers(found), 0))
        spread = torch.linspace(0, len(reader) - 1, min(self.batch, len(reader))).long()
        self.samples = [reader.fetch(torch.arange(len(spread)), 0), reader.fetch(spread, 0)]
        """The first, and some of all."""
        model._symbolic_build(data_batch=self.samples[0])

    def begin(self, meeting: EpochSync) -> Tensor:
        """The order of an epoch: the first worker's."""
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
