"""Batches gathered into buffers that are used in turn: none is filled before its copy is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from phalanx.data.augment import crop_and_flip
from phalanx.data.gpu_copies import batches_ahead, copied_ahead
from phalanx.data.reader import TensorReader

HOST = torch.device("cpu")


class LateCopies:
    """Like a GPU's stream: a copy happens when it is waited for, and not before."""

    def copy(self, value: list[Tensor]) -> tuple[list[Tensor], LateEvent]:
        targets = [torch.full_like(row, -1) for row in value]
        return targets, LateEvent(targets, value)

    def hand_over(self, value: list[Tensor], there: LateEvent) -> list[Tensor]:
        there.synchronize()
        return value


class LateEvent:
    def __init__(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        self._copies, self._done = list(zip(targets, sources, strict=True)), False

    def synchronize(self) -> None:
        if not self._done:
            for target, source in self._copies:
                target.copy_(source)
        self._done = True


def _orders(samples: int, batch: int) -> Iterator[tuple[int, Tensor]]:
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(3))
    for key, start in enumerate(range(0, samples, batch)):
        yield key, order[start : start + batch]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_every_batch_is_what_the_reader_would_fetch(ahead: int) -> None:
    reader = TensorReader([torch.randn(203, 3, 4), torch.arange(203)])
    found = dict(batches_ahead(reader, _orders(203, 10), LateCopies(), ahead, pin=False))
    assert list(found) == list(range(21))
    for key, indices in _orders(203, 10):
        x, y = found[key]
        assert torch.equal(y, indices)
        assert torch.equal(x, reader.fetch(indices, 0)[0])


def test_a_batch_keeps_its_values_after_later_ones_were_read() -> None:
    reader = TensorReader([torch.arange(100)])
    batches = [
        (batch[0], batch[0].clone())
        for _, batch in batches_ahead(reader, _orders(100, 5), LateCopies(), 2, pin=False)
    ]
    assert all(torch.equal(now, then) for now, then in batches)


def test_what_another_reader_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    items = [(n, [torch.full((2,), float(n))]) for n in range(7)]
    for ahead in (0, 2):
        found = [(n, batch[0].tolist()) for n, batch in copied_ahead(items, LateCopies(), ahead)]
        assert found == [(n, batch[0].tolist()) for n, batch in items]


@pytest.mark.parametrize(("shape", "parts"), [((3, 130, 100), 2), ((1 << 20,), 64), ((40009,), 1)])
def test_long_rows_are_taken_in_parts(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], parts: int
) -> None:
    """Where they can be divided: 40009 is a prime."""
    taken, select = [], torch.index_select

    def watched(tensor: Tensor, dim: int, indices: Tensor, *, out: Tensor) -> Tensor:
        taken.append(len(indices))
        return select(tensor, dim, indices, out=out)

    monkeypatch.setattr(torch, "index_select", watched)
    reader = TensorReader([torch.randn(5, *shape)])
    found = dict(batches_ahead(reader, _orders(5, 4), LateCopies(), 1, pin=False))
    assert taken == [4 * parts, parts]
    for key, indices in _orders(5, 4):
        assert torch.equal(found[key][0], reader.tensors[0][indices])


def test_a_moved_reader_has_the_same_batches() -> None:
    reader = TensorReader([torch.randn(20, 3, 8, 8)], seed=5, augment=crop_and_flip())
    moved, indices = reader.on(HOST), torch.tensor([7, 3, 3])
    assert torch.equal(moved.fetch(indices, 2)[0], reader.fetch(indices, 2)[0])


def test_only_known_augmentation_moves() -> None:
    x = torch.randn(4, 3, 8, 8)
    assert TensorReader([x], augment=crop_and_flip()).moves
    assert not TensorReader([x], augment=lambda batch, draws: batch).moves
