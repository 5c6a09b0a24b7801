"""Batches that a process of a loader made arrive as they were."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from phalanx.data.loader_process import SMALL, reduce_by_size
from phalanx.data.reader import as_reader

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.bfloat16]


def _kinds() -> dict[str, Tensor]:
    kinds = {str(dtype): torch.arange(6).view(2, 3).to(dtype, copy=True) for dtype in DTYPES}
    kinds |= {"number": torch.tensor(7), "empty": torch.empty(0, 5), "large": torch.arange(SMALL)}
    kinds |= {"turned": torch.arange(6.0).view(2, 3).T, "sparse": torch.eye(3).to_sparse()}
    kinds |= {"grad": torch.ones(2, requires_grad=True)}
    kinds |= {"nested": torch.nested.nested_tensor([torch.arange(2), torch.arange(3)])}
    return kinds | {"complex": torch.complex(torch.arange(3.0), torch.arange(3.0))}


class Kinds(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return _kinds()


def _first(samples: list[Any]) -> Any:
    return samples[0]


@pytest.mark.timeout(60)
def test_tensors_of_all_kinds() -> None:
    reader = as_reader(DataLoader(Kinds(), 1, num_workers=1, collate_fn=_first))
    for _, batch in reader.stream(((n, torch.tensor([n])) for n in range(2)), 0):
        assert batch.keys() == _kinds().keys()
        for name, expected in _kinds().items():
            found = batch[name]
            assert found.layout == expected.layout and found.dtype == expected.dtype
            assert found.requires_grad == expected.requires_grad
            pairs = zip(_dense(found), _dense(expected), strict=True)
            assert all(torch.equal(*pair) for pair in pairs)
        assert batch["large"].is_shared() and not batch["number"].is_shared()
        batch["number"].add_(1)
        assert int(batch["number"]) == 8


def _dense(tensor: Tensor) -> list[Tensor]:
    return list(tensor.unbind()) if tensor.is_nested else [tensor.to_dense()]


def test_only_a_small_one_whose_memory_is_its_own_is_sent_by_its_values() -> None:
    by_value = {name for name, t in _kinds().items() if _reduced(t)[0] is torch.from_numpy}
    plain = {str(dtype) for dtype in DTYPES if dtype != torch.bfloat16}
    assert by_value == {"number", "empty", "complex"} | plain
    rows = torch.arange(4)
    views = [rows, rows[:]]
    assert not any(_reduced(view)[0] is torch.from_numpy for view in views)


class Shared(Dataset[Any]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.arange(4)
        return {"ids": ids, "labels": ids, "part": ids[1:3]}


@pytest.mark.timeout(60)
def test_what_shares_its_memory_goes_on_to() -> None:
    """As alone: labels that are the inputs themselves change with them."""
    reader = as_reader(DataLoader(Shared(), 1, num_workers=1, collate_fn=_first))
    ((_, batch),) = reader.stream([(0, torch.tensor([0]))], 0)
    batch["ids"].fill_(9)
    assert batch["labels"].tolist() == [9] * 4 and batch["part"].tolist() == [9] * 2


def _reduced(tensor: Tensor) -> tuple[Any, ...]:
    found = reduce_by_size(tensor)
    if found[0] is torch.from_numpy:
        assert isinstance(found[1][0], np.ndarray)
        assert ForkingPickler.loads(ForkingPickler.dumps(found[1][0])).shape == tensor.shape
    return found
