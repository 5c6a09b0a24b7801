"""Data of workers that are threads: kept once, and private to whoever writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from scripted import as_threads

from phalanx.core.context import WorkerContext, enter
from phalanx.data.shared_memory import share
from phalanx.sync.arena.memory_arena import Hub

LARGE = 1 << 19


def _as_workers(work: Callable[[int], Any]) -> list[Any]:
    hub = Hub(3)

    def live(rank: int) -> Any:
        enter(WorkerContext({}, hub))
        return work(rank)

    return as_threads(hub, live)


def test_equal_tensors_become_the_same_pages_and_stay_private() -> None:
    def work(rank: int) -> tuple[float, float]:
        made = torch.arange(LARGE, dtype=torch.float32) * 2
        share((made, torch.zeros(3)))
        before = float(made.sum())
        made[0] = rank + 1
        return before, float(made[0])

    whole = float((torch.arange(LARGE, dtype=torch.float32) * 2).sum())
    assert _as_workers(work) == [(whole, rank + 1.0) for rank in range(3)]


def test_tensors_that_differ_or_are_parts_of_others_are_left_alone() -> None:
    def work(rank: int) -> tuple[float, bool]:
        whole = torch.full((2, LARGE), float(rank))
        part, own = whole[0], torch.full((LARGE,), float(rank))
        share([part, own])
        whole[0, 0] = 9.0
        return float(own[1]), float(part[0]) == 9.0

    assert _as_workers(work) == [(0.0, True), (1.0, True), (2.0, True)]


def test_outside_of_threads_nothing_is_kept() -> None:
    made = torch.zeros(LARGE)
    place = made.data_ptr()
    share(made)
    assert made.data_ptr() == place
