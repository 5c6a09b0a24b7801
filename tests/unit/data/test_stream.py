"""Samples without numbers: in their order, with random numbers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from phalanx.core.errors import InputError
from phalanx.data.reader import as_reader


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ((torch.rand(1), number) for number in range(5))


def numbers() -> Iterator[int]:
    yield from range(7)


def test_random_numbers_do_not_depend_on_who_reads_what() -> None:
    one, other = as_reader(Streamed(), seed=3), as_reader(Streamed(), seed=3)
    whole, before = one.fetch(torch.arange(5), 1)[0], torch.get_rng_state()
    torch.rand(3)
    part = other.fetch(torch.tensor([2]), 1)[0]
    torch.rand(3)
    assert torch.equal(torch.cat([part, other.fetch(torch.tensor([4]), 1)[0]]), whole[[2, 4]])
    assert torch.equal(other.fetch(torch.tensor([0]), 1)[0], whole[[0]])  # from the start again
    assert not torch.equal(other.fetch(torch.tensor([0]), 2)[0], whole[[0]])
    torch.set_rng_state(before)
    one.fetch(torch.arange(5), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_function() -> None:
    reader = as_reader(numbers)
    assert len(reader) == 7 and reader.fetch(torch.tensor([6]), 0).tolist() == [6]
    assert list(reader.peek([0, 3])) == [0]


def test_streams_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Streamed):
        def __len__(self) -> int:
            return 9

    with pytest.raises(InputError, match="ended after 5 of 9 samples"):
        as_reader(Short()).fetch(torch.tensor([7]), 0)

    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield 1

    monkeypatch.setattr("phalanx.data.stream.COUNT_SECONDS", 0.01)
    with pytest.raises(InputError, match="did not end"):
        as_reader(Endless())
    with pytest.raises(InputError, match="empty"):
        as_reader(DataLoader(IterableEmpty(), batch_size=1))
    with pytest.raises(InputError, match="augment does not work on data streams"):
        as_reader(Streamed(), augment=lambda x, draws: x)


def test_what_can_be_read_only_once_is_refused() -> None:
    with pytest.raises(InputError, match="a generator, which can be read only once") as caught:
        as_reader(numbers())
    assert "generator function itself" in caught.value.remedy
    used = iter(range(3))

    class Once(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return used

    with pytest.raises(InputError, match="its iterator is used up"):
        as_reader(Once()).fetch(torch.tensor([0]), 0)


def test_a_stream_that_gives_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(Streamed):
        def __len__(self) -> int:
            return 3

    reader = as_reader(Long())
    assert len(reader.fetch(torch.arange(3), 0)[1]) == 3
    assert "more than its __len__ of 3" in reader.note  # type: ignore[attr-defined]
    lengths = iter((5, 7))

    def changing() -> Iterator[int]:
        yield from range(next(lengths))

    with pytest.raises(InputError, match="gave 5 samples when it was counted, and more"):
        as_reader(changing).fetch(torch.arange(5), 0)


class IterableEmpty(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(())
