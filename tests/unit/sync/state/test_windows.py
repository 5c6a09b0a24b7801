"""Tensors that become those of the first worker, in place."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch

from phalanx.sync.state.windows import WINDOW, broadcast


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
