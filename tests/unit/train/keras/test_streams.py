"""Batches of a stream are divided without a number: each row is somebody's, once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras_here import Alone, noting_model, numbered

from phalanx.adapters.keras.torch_backend import TorchKerasModel
from phalanx.core.errors import InputError
from phalanx.train.keras.arrays import KEPT, BatchPart, FitArguments, StreamReader, StreamSource

SAMPLES, EPOCHS = 22, 3


def _same(rows: Any) -> Any:
    return rows


def _batches(sizes: list[int]) -> list[tuple[Any, Any, None]]:
    """Rows with numbers of their own; no weights."""
    ends = np.cumsum(sizes)
    rows = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return [(each, 10 * each, None) for each in rows]


def _reader(sizes: list[int]) -> StreamReader:
    reader = StreamReader(len(sizes), sizes[0], _same)
    reader.begin(iter(_batches(sizes)))
    return reader


def _check(share: BatchPart) -> list[int]:
    """The numbers of its rows."""
    x, y, weights = share.batch
    assert weights is None and (y == 10 * x).all()
    assert len(x) == max(1, share.rows)  # a step without rows needs one, which does not count
    return list(x[: share.rows])


@st.composite
def _streams(draw: st.DrawFn) -> list[int]:
    """Sizes of batches: of a length of the first one, or shorter, in any place."""
    size = draw(st.integers(1, 9))
    return [size, *draw(st.lists(st.integers(1, size), max_size=12))]


@given(_streams(), st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_it_is_cut_each_row_is_read_once(
    keras: Any, sizes: list[int], data: st.DataObject
) -> None:
    """Workers that run freely take runs of numbers, across batches too."""
    columns = len(sizes) * sizes[0]
    cuts = data.draw(st.sets(st.integers(0, columns)).map(sorted))
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(cuts) + 1, max_size=len(cuts) + 1))
    workers, seen = [_reader(sizes) for _ in range(3)], list[int]()
    for first, last, owner in zip([0, *cuts], [*cuts, columns], owners, strict=True):
        if last > first:
            seen += _check(workers[owner].fetch(torch.arange(first, last), 0))
    assert seen == list(range(sum(sizes)))
    assert len({worker.end() for worker in workers}) == 1


@given(_streams(), st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_global_batch_is_divided_exactly(
    keras: Any, sizes: list[int], data: st.DataObject
) -> None:
    """Workers in lockstep take columns of each batch, in any proportion."""
    size = sizes[0]
    cuts = data.draw(st.lists(st.integers(0, size), max_size=3).map(sorted))
    workers = [_reader(sizes) for _ in range(len(cuts) + 1)]
    for number, (whole, _, _) in enumerate(_batches(sizes)):
        begin, seen = number * size, list[int]()
        for reader, first, last in zip(workers, [0, *cuts], [*cuts, size], strict=True):
            if last > first:
                seen += _check(reader.fetch(torch.arange(begin + first, begin + last), 0))
        assert seen == list(whole)


def test_a_short_batch_is_divided_in_the_same_proportions(keras: Any) -> None:
    reader = _reader([8, 4])
    assert reader.fetch(torch.arange(8, 14), 0).rows == 3
    assert reader.fetch(torch.arange(14, 16), 0).rows == 1


def test_a_share_may_be_read_again_for_a_while(keras: Any) -> None:
    """Another worker's share, once that one is lost; not for ever."""
    reader = _reader([2] * (KEPT + 2))
    first = reader.fetch(torch.arange(2), 0)
    reader.fetch(torch.arange(2 * KEPT - 2, 2 * KEPT), 0)
    assert list(reader.fetch(torch.arange(2), 0).batch[0]) == list(first.batch[0])
    reader.fetch(torch.arange(2 * KEPT, 2 * KEPT + 2), 0)
    with pytest.raises(InputError, match="lost worker"):
        reader.fetch(torch.arange(2), 0)


def test_data_that_end_too_early(keras: Any) -> None:
    reader = StreamReader(3, 4, _same)
    reader.begin(iter(_batches([4, 4])))
    with pytest.raises(InputError, match="ended after 2 of 3 batches"):
        reader.fetch(torch.arange(8, 12), 0)


def test_the_checksum_is_of_all_that_was_read(keras: Any) -> None:
    one, other, more = _reader([4, 4]), _reader([4, 4]), _reader([4, 3])
    one.fetch(torch.arange(4), 0)  # where it stands when its part is done makes no difference
    assert one.end() == other.end() != more.end()
    swapped = StreamReader(2, 4, _same)
    swapped.begin(iter(reversed(_batches([4, 4]))))
    assert swapped.end() != one.checksum


# -- against plain Keras --------------------------------------------------------------------------


def _source(model: Any, *args: Any, **options: Any) -> StreamSource:
    asked = FitArguments.of(type(model).fit.__get__(model), *args, **options)
    return StreamSource(model, asked, TorchKerasModel)


def _dataset(keras: Any) -> Any:
    class Parts(keras.utils.PyDataset):  # type: ignore[name-defined, misc]
        def __len__(self) -> int:
            return -(-SAMPLES // 5)

        def __getitem__(self, number: int) -> Any:
            x, y = numbered(SAMPLES)
            return x[5 * number : 5 * number + 5], y[5 * number : 5 * number + 5]

    return Parts()


def _generator(keras: Any) -> Iterator[Any]:
    x, y = numbered(1000)
    for first in range(0, 1000, 5):
        yield x[first : first + 5], y[first : first + 5]


def test_how_many_batches_has_to_be_known(keras: Any) -> None:
    with pytest.raises(InputError, match="steps_per_epoch"):
        _source(noting_model(keras), _generator(keras))


def test_workers_that_read_different_data_are_told(keras: Any) -> None:
    class Apart(Alone):
        @staticmethod
        def gather(value: Any) -> list[Any]:
            return [value, value + 1]

    source = _source(noting_model(keras), _dataset(keras))
    source.begin(Alone())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="different data"):
        source.end(Apart())  # type: ignore[arg-type]
