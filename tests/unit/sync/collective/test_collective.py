"""Collectives over links in memory: sums, identical bits, exact byte counts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_links import MemoryLinks, memory_links
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.policies.collective_choice import choose
from phalanx.sync.collective.algorithms import butterfly, direct, ring, tree
from phalanx.sync.collective.collective import Collective, all_gather_direct, all_gather_ring
from phalanx.sync.collective.links import Links
from phalanx.sync.collective.parts import part_sizes

T = TypeVar("T")
ALGORITHMS = {"direct": direct, "ring": ring, "tree": tree, "butterfly": butterfly}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.3}


def together(size: int, act: Callable[[MemoryLinks], T]) -> tuple[list[T], list[MemoryLinks]]:
    """``act`` as each of ``size`` participants, in threads; what they return, by rank."""
    meshes = memory_links(size, timeout=20.0)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(act, meshes)), meshes


def values(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def bits(flat: Tensor) -> bytes:
    return flat.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", ALGORITHMS)
@given(
    size=st.integers(1, 9),
    count=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(max_examples=40, deadline=None)
def test_all_reduce_sums_identically_with_exact_bytes(
    name: str, size: int, count: int, dtype: torch.dtype
) -> None:
    algorithm = ALGORITHMS[name]

    def act(links: Links) -> Tensor:
        flat = values(links.rank, count, dtype)
        algorithm.all_reduce(links, flat)
        return flat

    results, meshes = together(size, act)
    expected = sum(values(rank, count, dtype).double() for rank in range(size))
    assert torch.allclose(results[0].double(), expected, atol=TOLERANCE[dtype], rtol=0)
    assert {bits(flat) for flat in results} == {bits(results[0])}
    nbytes = count * dtype.itemsize
    assert [links.sent for links in meshes] == [
        algorithm.bytes_sent(nbytes, size, rank) for rank in range(size)
    ]


@given(nbytes=st.integers(0, 5000), size=st.integers(1, 20))
def test_parts_cover_everything_evenly(nbytes: int, size: int) -> None:
    sizes = part_sizes(nbytes, size)
    assert len(sizes) == size and sum(sizes) == nbytes
    assert max(sizes) - min(sizes) <= 127


@given(size=st.integers(1, 9), root=st.integers(0, 8), count=st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_broadcast_from_any_root(size: int, root: int, count: int) -> None:
    root %= size

    def act(links: Links) -> Tensor:
        copied = values(links.rank, count, torch.float64)
        tree.broadcast(links, copied, root)
        assert links.sent == 8 * count * len(tree.family(links.rank, size, root)[1])
        return copied

    results, _ = together(size, act)
    assert all(torch.equal(copied, values(root, count, torch.float64)) for copied in results)


@pytest.mark.parametrize("way", [all_gather_direct, all_gather_ring])
@given(
    size=st.integers(1, 6),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=80),
)
@settings(max_examples=20, deadline=None)
def test_payloads_of_unknown_sizes_reach_everybody(
    way: Callable[[Links, list[Tensor]], list[list[Tensor]]], size: int, shapes: list[list[int]]
) -> None:
    dtypes = [torch.uint8, torch.int32, torch.float32, torch.bfloat16, torch.bool]

    def payload(rank: int) -> list[Tensor]:
        shown = shapes[: len(shapes) - rank % 2 * (len(shapes) // 2)]
        return [
            torch.full(shape, rank + index % 3).to(dtypes[(rank + index) % len(dtypes)])
            for index, shape in enumerate(shown)
        ]

    results, _ = together(size, lambda links: way(links, payload(links.rank)))
    for gathered in results:
        assert len(gathered) == size
        for rank, tensors in enumerate(gathered):
            expected = payload(rank)
            assert [t.dtype for t in tensors] == [t.dtype for t in expected]
            assert all(map(torch.equal, tensors, expected))


@pytest.mark.parametrize("topology", [None, *ALGORITHMS])
def test_the_collective_packs_small_tensors_and_counts_bytes(topology: str | None) -> None:
    def act(links: Links) -> tuple[list[Tensor], int, list[Tensor], list[list[Tensor]]]:
        collective = Collective(links, topology)
        rank = float(links.rank + 1)
        flats = [
            torch.full((10,), rank),
            torch.full((3,), 2 * rank),
            torch.full((40_000,), rank, dtype=torch.float64),
            torch.full((5,), rank, dtype=torch.float64),
        ]
        sent = collective.all_reduce(flats)
        weights = [torch.full((2, 3), rank, requires_grad=True), torch.full((), rank)]
        collective.broadcast(weights, root=1)
        return flats, sent, weights, collective.all_gather([torch.tensor([rank])])

    results, _ = together(3, act)
    for rank, (flats, sent, weights, gathered) in enumerate(results):
        assert [set(flat.tolist()) for flat in flats] == [{6.0}, {12.0}, {6.0}, {6.0}]
        sizes = [52, 320_000, 40]
        names = [topology or choose(None, 3, count) for count in sizes]
        assert sent == sum(
            ALGORITHMS[name].bytes_sent(count, 3, rank)
            for name, count in zip(names, sizes, strict=True)
        )
        assert all((weight == 2.0).all() for weight in weights)
        assert [one.tolist() for (one,) in gathered] == [[1.0], [2.0], [3.0]]


def test_an_unknown_topology_is_refused() -> None:
    with pytest.raises(InputError, match="star"):
        Collective(memory_links(2)[0], "star")
