"""Batches that a process of a loader made arrive as they were."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from phalanx.data import loader_process
from phalanx.data.loader_process import LARGE, SMALL, collated_to_pin, reduce_by_size
from phalanx.data.prefetch import FEW_THREADS
from phalanx.data.reader import as_reader

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.bfloat16]


def _kinds() -> dict[str, Tensor]:
    kinds = {str(dtype): torch.arange(6).view(2, 3).to(dtype, copy=True) for dtype in DTYPES}
    kinds |= {"number": torch.tensor(7), "empty": torch.empty(0, 5), "large": torch.arange(SMALL)}
    kinds |= {"turned": torch.arange(6.0).view(2, 3).T, "sparse": torch.eye(3).to_sparse()}
    kinds |= {"grad": torch.ones(2, requires_grad=True)}
    kinds |= {"nested": torch.nested.nested_tensor([torch.arange(2), torch.arange(3)])}
    return kinds | {"complex": torch.complex(torch.arange(3.0), torch.arange(3.0))}


def _first(samples: list[Any]) -> Any:
    return samples[0]


def _send_by_size(_: int) -> None:
    ForkingPickler.register(Tensor, reduce_by_size)


class Kinds(Dataset[Any]):
    def __len__(self) -> int:
        return len(_kinds())

    def __getitem__(self, index: int) -> Tensor:
        return list(_kinds().values())[index]


@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_all_kinds_arrive_from_a_process() -> None:
    loader = DataLoader(Kinds(), 1, num_workers=1, collate_fn=_first, worker_init_fn=_send_by_size)
    orders = [(expected, torch.tensor([n])) for n, expected in enumerate(_kinds().values())]
    arrived = list(as_reader(loader).stream(orders, 0))
    assert len(arrived) == len(orders)
    for expected, found in arrived:
        assert found.dtype == expected.dtype
        parts = zip(found.unbind(), expected.unbind(), strict=True) if found.is_nested else ()
        assert all(torch.equal(a, b) for a, b in parts)
        assert found.is_nested or torch.equal(found.to_dense(), expected.to_dense())


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("own", "several"), [(1, 1), (2, 2), (16, FEW_THREADS)])
def test_large_batches_are_pinned_by_several_threads(
    monkeypatch: pytest.MonkeyPatch, own: int, several: int
) -> None:
    """Small ones by one, as torch does: more would only take their time from the training."""
    threads: list[int] = []

    def pin(batch: Any) -> Any:
        threads.append(torch.get_num_threads())
        return batch

    monkeypatch.setattr(loader_process, "pin_memory", pin)
    small, large = torch.zeros(8), {"x": torch.zeros(LARGE // 4), "name": "large"}
    before, batches = torch.get_num_threads(), (small, large, [small], (large["x"], 0))
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        made = [collated_to_pin(_first, own, [batch]) for batch in batches]
        found = [pool.submit(batch.pin_memory).result() for batch in made]
    torch.set_num_threads(before)
    assert threads == [1, several, 1, several]
    assert all(a is b for a, b in zip(found, batches, strict=True))


class Labelled(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int, Tensor]:
        return torch.full((SMALL,), float(index)), index, torch.ones(2, dtype=torch.bfloat16)


@pytest.mark.timeout(180)
def test_labels_come_in_the_message() -> None:
    reader = as_reader(DataLoader(Labelled(), 4, num_workers=1))
    for start, (x, y, half) in reader.stream([(n, torch.arange(n, n + 4)) for n in (0, 4)], 0):
        assert x.is_shared() and not y.is_shared()
        assert x[:, 0].tolist() == y.tolist() == list(range(start, start + 4))
        assert half.is_shared() and torch.equal(half, torch.ones(4, 2, dtype=torch.bfloat16))
        y.add_(1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("batch", [4, 1 + LARGE // SMALL])
def test_a_loader_that_pins(batch: int) -> None:
    loader = DataLoader(Labelled(), batch, num_workers=1, pin_memory=True)
    threads = torch.get_num_threads()
    order = torch.arange(batch) % len(Labelled())
    for _, (x, y, half) in as_reader(loader).stream([(0, order), (1, order)], 0):
        assert x.is_pinned() and y.is_pinned() and half.is_pinned()
        assert x[:, 0].tolist() == y.tolist() == order.tolist()
        with ThreadPoolExecutor(1) as pool:  # a new thread begins with what was set last
            assert pool.submit(torch.get_num_threads).result() == threads


def test_only_a_small_one_is_sent_by_its_values() -> None:
    by_value = {name for name, t in _kinds().items() if reduce_by_size(t)[0] is torch.from_numpy}
    plain = {str(dtype) for dtype in DTYPES if dtype != torch.bfloat16}
    assert by_value == {"number", "empty", "complex"} | plain


class Kept(Dataset[Any]):
    """Gives the same tensor in each epoch: in shared memory, which the script may change."""

    def __init__(self) -> None:
        self._ids = torch.arange(4)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"ids": self._ids, "labels": self._ids, "part": self._ids[1:3]}


@pytest.mark.timeout(180)
def test_what_shares_its_memory_goes_on_to() -> None:
    """As alone: labels that are the inputs themselves change with them, and with the dataset's."""
    reader = as_reader(DataLoader(Kept(), 1, num_workers=1, collate_fn=_first, prefetch_factor=1))
    values = []
    for _, batch in reader.stream([(n, torch.tensor([0])) for n in range(4)], 0):
        batch["ids"].add_(1)
        assert torch.equal(batch["labels"], batch["ids"])
        assert torch.equal(batch["part"], batch["ids"][1:3])
        values.append(int(batch["ids"][0]))
    assert values == [1, 2, 3, 4]


@pytest.mark.timeout(180)
def test_read_by_the_threads_of_pools() -> None:
    """One for each batch: processes do not end with the thread that started them, nor by it."""
    reader = as_reader(DataLoader(Labelled(), 4, num_workers=1))
    stream = reader.stream([(n, torch.arange(n, n + 4)) for n in (0, 4)], 0)
    found, ended = [], []
    before = set(multiprocessing.active_children())
    while True:
        with ThreadPoolExecutor(1) as pool:
            item = pool.submit(next, stream, None).result()
        ended += [child for child in multiprocessing.active_children() if child not in before]
        if item is None:
            break
        found += item[1][1].tolist()
    assert found == list(range(8))
    assert ended and all(child.exitcode == 0 for child in ended)
