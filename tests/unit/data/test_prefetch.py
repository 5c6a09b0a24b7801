"""Items are made ahead, and copied to a GPU, without changing which; no thread is left."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from phalanx.data.augment import crop_and_flip
from phalanx.data.gpu_copies import CudaCopies, batches_ahead, copied_ahead
from phalanx.data.prefetch import move, prefetch
from phalanx.data.reader import TensorReader


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "phalanx-prefetch"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers()), max_size=20), st.integers(1, 4))
def test_same_items_in_the_same_order(items: list[int | None], depth: int) -> None:
    assert list(prefetch(items, depth)) == items
    assert not threads()


def test_items_are_made_ahead_but_not_without_limit() -> None:
    made: list[int] = []
    changed = threading.Condition()

    def source() -> Iterator[int]:
        for number in range(100):
            with changed:
                made.append(number)
                changed.notify_all()
            yield number

    items = prefetch(source(), depth=3)
    assert next(items) == 0
    with changed:  # 0 was taken; 1, 2, 3 wait in the queue and 4 waits for room
        assert changed.wait_for(lambda: len(made) == 5, timeout=10)
        assert not changed.wait_for(lambda: len(made) > 5, timeout=0.2)
    items.close()  # type: ignore[attr-defined]


def test_an_exception_arrives_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken sample")

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken sample"):
        next(items)
    assert not threads()


def test_closing_ends_the_thread_and_the_source() -> None:
    ended = threading.Event()

    def source() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            ended.set()

    items = prefetch(source())
    next(items)
    assert threads()
    items.close()  # type: ignore[attr-defined]
    assert ended.is_set() and not threads()


def test_leaving_a_loop_early_ends_the_thread() -> None:
    items = prefetch(iter(range(10**9)))
    for item in items:
        if item == 3:
            break
    del items
    assert not threads()


def test_what_begins_early() -> None:
    """Where the next item is there, it begins before the one ahead of it is used."""
    events: list[str] = []
    goes_on, over = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 0
        assert goes_on.wait(10)
        yield from (1, 2)
        over.set()

    def begin(number: int) -> str:
        events.append(f"begin {number}")
        return f"begun {number}"

    items = prefetch(source(), depth=3, begin=begin)
    assert next(items) == "begun 0"  # which waits for no other
    goes_on.set()
    assert over.wait(10)
    for item in items:
        events.append(f"use {item[-1]}")
    assert events == ["begin 0", "begin 1", "begin 2", "use 1", "use 2"]


def test_threads_of_torch_are_limited_beside_the_training_alone() -> None:
    def threads_there(threads: int | None) -> int:
        (found,) = prefetch((torch.get_num_threads() for _ in range(1)), threads=threads)
        assert torch.get_num_threads() == 3
        return found

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert [threads_there(asked) for asked in (1, 2, 5, None)] == [1, 2, 3, 3]
    finally:
        torch.set_num_threads(before)


def test_move_reaches_into_structures() -> None:
    pair = namedtuple("pair", "x y")
    value = {"a": [torch.ones(1), 2], "b": pair(torch.ones(2), (torch.ones(3),))}
    moved = move(value, torch.device("meta"))
    assert moved["a"][0].is_meta and moved["a"][1] == 2
    assert isinstance(moved["b"], pair) and moved["b"].y[0].is_meta


class Movable:
    """A batch of a class of one's own."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Movable:
        return Movable(self.x.to(device))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_gpu_is_given_every_item_whole(ahead: int) -> None:
    def item(number: int) -> tuple[int, tuple[Any, ...]]:
        x = torch.full((64, 1000), float(number))
        return number, (x, torch.tensor([number]), Movable(x), pack_sequence([x[:3], x[:2]]))

    copies, seen = CudaCopies(torch.device("cuda:0")), []
    for key, (x, n, own, packed) in copied_ahead(map(item, range(20)), copies, ahead):
        assert key == int(n)
        assert x.is_cuda and own.x.is_cuda and packed.data.is_cuda
        assert all(bool((part == float(n)).all()) for part in (x, own.x, packed.data))
        seen.append(int(n))
    assert seen == list(range(20))


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
