"""Whose gradients have gone, and whether they are still what went."""

from __future__ import annotations

import pytest
import torch
from memory_links import memory_links
from torch import Tensor, nn

from phalanx.sync.collective.algorithms.ahead import AheadSum
from phalanx.sync.reduce import early_gradients
from phalanx.sync.reduce.early_gradients import EarlyGradients, cuts_of
from phalanx.sync.reduce.early_sums import Alone
from phalanx.sync.state.layout import make_layout


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_gradients, "LEAST", 1)
    monkeypatch.setattr(early_gradients, "REST", 2)


class Backward:
    """Parameters of some sizes whose gradients come last to first, as from a backward pass."""

    def __init__(self, *sizes: int, dtype: torch.dtype = torch.float32) -> None:
        self.parameters = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]
        layout = make_layout([(0, p) for p in self.parameters], 1)
        self.flat = torch.full((layout.size,), -1.0, dtype=dtype)
        ahead = AheadSum(memory_links(2)[0], self.flat, cuts_of(layout))
        self.early = EarlyGradients(layout, self.parameters, self.flat, Alone(ahead))

    def run(self, *without: int) -> None:
        for i in reversed(range(len(self.parameters))):
            if i not in without:
                self.parameters[i].grad = torch.randn_like(self.parameters[i])
                if i in self.early.watched:
                    self.early.take(i)

    def gradient(self, index: int) -> Tensor:
        gradient = self.parameters[index].grad
        assert gradient is not None
        return gradient


def test_memory_that_others_wrote_to_proves_nothing() -> None:
    backward = Backward(3, 4, 5)
    backward.early.distrust()
    backward.run()
    assert backward.early.settle() == ({1, 2}, False), "nothing had gone then"
    backward.early.distrust()
    assert backward.early.settle() == (set(), True)


def test_numbers_that_are_not_what_their_bytes_say() -> None:
    backward = Backward(3, 4, dtype=torch.complex64)
    backward.run()
    backward.parameters[1].grad = backward.gradient(1).conj()
    assert backward.early.settle() == (set(), True)


def test_an_empty_parameter_without_a_gradient_is_none_that_went() -> None:
    backward = Backward(3, 4, 0)
    backward.run(2)
    assert backward.early.settle() == (set(), False)
    backward.early.renew()
    backward.run()
    assert backward.early.settle() == ({1, 2}, False)
