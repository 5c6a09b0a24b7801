"""Prefetching changes when items are made, never which, and leaves no thread behind."""

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

from phalanx.data.gpu_copies import CudaCopies, copied_ahead
from phalanx.data.prefetch import move, prefetch


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
