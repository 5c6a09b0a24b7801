"""Whatever the script gives is read by sample number, or refused with a reason."""

from __future__ import annotations

import multiprocessing
import random
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from phalanx.core.errors import InputError
from phalanx.data.augment import Draws, crop_and_flip
from phalanx.data.prefetch import prefetch
from phalanx.data.reader import Reader, TensorReader, as_reader, order

X = torch.arange(20.0).view(10, 2)
Y = torch.arange(10)
PICK = torch.tensor([7, 0, 3])


class Squares(Dataset[Any]):
    """A lazy dataset."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index**2)]), index


class Noisy(Squares):
    """Random transforms with all three generators."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor(noise, dtype=torch.float64), index


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ((torch.rand(1), number) for number in range(5))


def pad_to_five(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    padded = torch.stack([torch.nn.functional.pad(x, (0, 4)) for x, _ in samples])
    return padded, torch.tensor([y for _, y in samples])


def add_epoch(x: Tensor, draws: Draws) -> Tensor:
    return x + 100 * draws.epoch + draws.samples[:, None]


pair = namedtuple("pair", "x y")


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        pair(X, Y),
        (X.numpy(), Y.numpy()),
        (X, Y.numpy()),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True),
        (X.T.contiguous().T, Y),
    ],
)
def test_tensors_are_gathered(data: Any) -> None:
    reader = as_reader(data)
    assert isinstance(reader, TensorReader) and isinstance(reader, Reader)
    assert len(reader) == 10 and reader.shuffle and reader.background
    x, y = reader.fetch(PICK, epoch=0)
    assert torch.equal(x, X[PICK]) and torch.equal(y, PICK)


def test_a_single_tensor_and_a_subset() -> None:
    assert torch.equal(as_reader(X).fetch(PICK, 0), X[PICK])
    subset = as_reader(Subset(TensorDataset(X, Y), [9, 8, 7]))
    assert isinstance(subset, TensorReader) and len(subset) == 3
    assert subset.fetch(torch.tensor([2, 0]), 0)[1].tolist() == [7, 9]
    lazy = as_reader(Subset(Squares(), [9, 8, 7]))
    assert lazy.fetch(torch.tensor([2, 0]), 0)[1].tolist() == [7, 9]


def test_a_loader_keeps_its_collate_function_and_facts() -> None:
    loader = DataLoader(Squares(), batch_size=4, drop_last=True, collate_fn=pad_to_five)
    reader = as_reader(loader)
    assert reader.fetch(PICK, 0)[0].shape == (3, 5)
    assert (reader.batch, reader.drop_last, reader.shuffle) == (4, True, False)
    tensors = as_reader(DataLoader(TensorDataset(X, Y), batch_size=3, collate_fn=lambda s: len(s)))
    assert tensors.fetch(PICK, 0) == 3


@pytest.mark.parametrize(
    ("sampler", "word"),
    [
        (SubsetRandomSampler([1, 2]), "SubsetRandomSampler"),
        (WeightedRandomSampler([1.0] * 10, 10), "WeightedRandomSampler"),
        (DistributedSampler(Squares(), 2, 0), "DistributedSampler"),
        (RandomSampler(Squares(), replacement=True), "each sample once"),
        (RandomSampler(Squares(), num_samples=5), "each sample once"),
    ],
)
def test_samplers_that_decide_themselves_are_refused(sampler: Any, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        as_reader(DataLoader(Squares(), batch_size=2, sampler=sampler))
    assert "which worker reads which sample" in caught.value.cause


def test_other_ways_of_batching_are_refused() -> None:
    class Own(BatchSampler):
        pass

    own = Own(SequentialSampler(Squares()), 2, False)
    with pytest.raises(InputError, match="its own batch_sampler"):
        as_reader(DataLoader(Squares(), batch_sampler=own))
    with pytest.raises(InputError, match="no batch size"):
        as_reader(DataLoader(Squares(), batch_size=None))
    with pytest.raises(InputError, match="no batch size"):
        as_reader(DataLoader(Streamed(), batch_size=None))


class WithoutLength(Dataset[Any]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ((X, Y[:9]), "differ in length: 10, 9"),
        ((X[:0], Y[:0]), "empty"),
        (Subset(Squares(), []), "empty"),
        ((), "cannot read"),
        ((X, torch.tensor(1.0)), "without dimensions"),
        ((X, "labels"), "Tensor, str"),
        ((X, np.array(["a"] * 10)), "NumPy array of <U1"),
        ("mnist", "type str"),
        ({"x": X}, "type dict"),
        (None, "type NoneType"),
        (WithoutLength(), "no length"),
    ],
)
def test_wrong_data_is_one_clear_line(data: Any, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        as_reader(data)
    assert "\n" not in caught.value.cause and caught.value.remedy


def test_augmentation_sees_epoch_and_sample_numbers() -> None:
    for data in ((X[:, :1], Y), Squares()):
        reader = as_reader(data, augment=add_epoch)
        plain = as_reader(data).fetch(PICK, 2)[0]
        assert torch.equal(reader.fetch(PICK, 2)[0], plain + 200 + PICK[:, None])


@settings(max_examples=20, deadline=None)
@given(st.permutations(list(range(10))), st.integers(1, 10), st.integers(0, 3))
def test_random_transforms_belong_to_the_sample(order: list[int], cut: int, epoch: int) -> None:
    reader = as_reader(Noisy(), seed=5)
    whole = reader.fetch(torch.arange(10), epoch)[0]
    for part in (order[:cut], order[cut:]):
        if part:
            assert torch.equal(reader.fetch(torch.tensor(part), epoch)[0], whole[part])
    assert not torch.equal(reader.fetch(torch.arange(10), epoch + 1)[0], whole)


def test_streams_keep_keys_order_and_empty_orders() -> None:
    orders = [("a", PICK), ("b", PICK[:0]), ("c", PICK + 1)]
    for data in ((X, Y), Squares(), DataLoader(Squares(), batch_size=2, num_workers=1)):
        streamed = list(as_reader(data).stream(orders, epoch=0))
        assert [key for key, _ in streamed] == ["a", "b", "c"]
        labels = [batch and batch[1].tolist() for _, batch in streamed]
        assert labels == [[7, 0, 3], None, [8, 1, 4]]


def test_loader_processes_make_the_same_batches() -> None:
    loader = DataLoader(Noisy(), batch_size=4, num_workers=2, shuffle=True)
    reader = as_reader(loader, seed=5)
    assert not reader.background and as_reader(loader, augment=crop_and_flip()).background
    chunks = [torch.arange(0), *torch.arange(10).split(3), torch.arange(0)]
    streamed = list(reader.stream(enumerate(chunks), epoch=1))
    alone = as_reader(Noisy(), seed=5)
    assert [key for key, _ in streamed] == list(range(6))
    for chunk, (_, batch) in zip(chunks, streamed, strict=True):
        if len(chunk) == 0:
            assert batch is None
        else:
            assert batch is not None and torch.equal(batch[1], chunk)
            assert torch.equal(batch[0], alone.fetch(chunk, 1)[0])


def test_a_stream_that_is_left_early_ends_its_processes() -> None:
    reader = as_reader(DataLoader(Squares(), batch_size=1, num_workers=2))
    stream = reader.stream(((i, torch.tensor([i % 10])) for i in range(1000)), epoch=0)
    items = prefetch(stream)
    assert next(items)[0] == 0
    assert multiprocessing.active_children()
    items.close()  # type: ignore[attr-defined]
    del stream
    assert not multiprocessing.active_children()


def test_the_order_is_the_same_for_everyone_and_new_in_each_pass() -> None:
    assert order(50, 7, 3).tolist() == order(50, 7, 3).tolist()
    assert order(50, 7, 3).tolist() != order(50, 7, 4).tolist()
    assert order(50, 7, 3).tolist() != order(50, 8, 3).tolist()
    assert sorted(order(50, 7, 3).tolist()) == list(range(50))
    assert order(5, 7, 3, shuffle=False).tolist() == [0, 1, 2, 3, 4]
