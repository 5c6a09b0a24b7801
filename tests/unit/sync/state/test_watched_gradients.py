"""Gradients whose reads are watched, and tensors that become those of the first worker."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from phalanx.sync.state.gradients import stop_watching, watch_reads
from phalanx.sync.state.windows import WINDOW, broadcast


class Derived(nn.Parameter):
    """As a script may have it."""


KINDS: dict[str, Callable[[], Tensor]] = {
    "parameter": lambda: nn.Parameter(torch.ones(3)),
    "derived": lambda: Derived(torch.ones(3)),
    "plain": lambda: torch.ones(3, requires_grad=True),
}


@pytest.mark.parametrize("name", KINDS)
def test_reads_and_writes_are_noticed(name: str) -> None:
    tensor, heard = KINDS[name](), []
    kind = type(tensor)
    watch_reads([tensor], lambda _: heard.append("read"), lambda _: heard.append("write"))
    result = (tensor * 2).sum()
    assert type(result) is Tensor
    result.backward()
    assert not heard
    assert tensor.grad is not None and heard == ["read"]
    tensor.grad = torch.zeros(3)
    assert heard == ["read", "write"]
    tensor.grad = None
    watch_reads([tensor], lambda _: None)
    assert isinstance(tensor, kind) and tensor.is_leaf
    assert isinstance(tensor, nn.Parameter) == (name != "plain")
    stop_watching([tensor])
    assert type(tensor) is kind


@pytest.mark.parametrize("name", KINDS)
def test_copies_are_ordinary(name: str) -> None:
    tensor = KINDS[name]()
    kind = type(tensor)
    watch_reads([tensor], lambda _: None)
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    for found in (copy.deepcopy(tensor), torch.load(buffer, weights_only=False)):
        assert type(found) in (kind, nn.Parameter) and "_phalanx_watched" not in vars(type(found))
        assert torch.equal(found, torch.ones(3)) and found.requires_grad
    assert "_phalanx_watched" in vars(type(tensor))


class _Arena:
    """A worker whose window already holds the first one's numbers."""

    hosts, rank = None, 1

    @property
    def host(self) -> _Arena:
        return self

    def region(self, _name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.arange(count).to(dtype)

    def barrier(self) -> object:
        return nullcontext()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(5, 1, 2),
        torch.zeros(1, 5, 2).transpose(0, 1),
        torch.zeros(2, 5).t(),
        torch.zeros(()),
        torch.zeros(0, 3),
    ],
    ids=["plain", "a dimension of one", "transposed", "a number", "empty"],
)
def test_each_layout_gets_the_numbers_in_its_order(tensor: torch.Tensor) -> None:
    assert tensor.numel() < WINDOW
    broadcast(cast("Any", _Arena()), [tensor])
    wanted = torch.arange(tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
    assert torch.equal(tensor, wanted)
