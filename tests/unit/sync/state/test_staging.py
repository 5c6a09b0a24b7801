"""Gradients that are gathered first arrive where the others would have put them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from phalanx.sync.state.layout import reshard
from phalanx.sync.state.replica import Collector, Replica
from phalanx.sync.state.staging import StagedCollector, Staging, merged

HERE = torch.device("cpu")


def _model(channels_last: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(20, 7))
    return model.to(memory_format=torch.channels_last) if channels_last else model


def _collected(replica: Replica, shards: int, *, staged: bool) -> tuple[Tensor, bytes | None]:
    layout, parameters = reshard(replica.layouts[0], shards), replica.parameters[0]
    whole = torch.full((layout.size,), -1.0)
    parts = [whole[slice(*layout.bounds(shard))] for shard in range(shards)]
    parts[0] = parts[0].clone()  # not a neighbour of the others
    if staged:
        flat = torch.full((layout.size,), -2.0)
        gather = Collector(reshard(layout, 1), parameters, [flat])
        used = StagedCollector(Staging(HERE), gather, flat, layout, parts).collect()
    else:
        used = Collector(layout, parameters, parts).collect()
    return torch.cat(parts), used


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3, 9])
@pytest.mark.parametrize("unused", [None, 0, 3])
def test_the_same_gradients_in_the_same_places(
    shards: int, channels_last: bool, unused: int | None
) -> None:
    model = _model(channels_last)
    replica = Replica(torch.optim.SGD(model.parameters(), lr=0.1), shards)
    model(torch.randn(2, 3, 3, 3)).square().sum().backward()
    if unused is not None:
        replica.parameters[0][unused].grad = None
    plain, staged = (_collected(replica, shards, staged=s) for s in (False, True))
    assert torch.equal(plain[0], staged[0])
    assert plain[1] == staged[1]
    assert (plain[1] is None) == (unused is None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8))
def test_neighbours_are_copied_as_one_and_nothing_else_is(parts: list[tuple[int, bool]]) -> None:
    """Each part with its size, and whether its target is apart from the one before."""
    source, at = torch.arange(float(sum(size for size, _ in parts))), 0
    targets, memory, used, copies, stretches = [], torch.zeros(100), 0, [], 0
    for i, (size, apart) in enumerate(parts):
        used += int(apart)
        stretches += int(apart or i == 0)
        targets.append(memory[used : used + size])
        copies.append((targets[-1], source[at : at + size]))
        used, at = used + size, at + size
    found = merged(copies)
    assert len(found) == stretches
    Staging(HERE).fetch(found)
    assert torch.equal(torch.cat(targets), source)
    assert float(memory.sum()) == float(source.sum())  # nothing beside the targets was written


def test_memory_of_different_tensors_is_never_taken_for_one() -> None:
    whole = torch.zeros(8)
    copies = [(torch.zeros(4), whole[:4]), (torch.zeros(4), whole[4:])]
    assert len(merged(copies)) == 2
