"""When which part of a gradient is there."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from phalanx.train.profile.profiling import PIECES, Readiness


def test_the_last_layers_are_ready_first() -> None:
    model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 2))
    ticks = itertools.count()
    readiness = Readiness(list(model.parameters()), lambda: float(next(ticks)))
    readiness.begin()
    model(torch.ones(3, 4)).sum().backward()
    readiness.end(float(next(ticks)))
    shares, times = zip(*readiness.pieces, strict=True)
    assert abs(sum(shares) - 1.0) < 1e-9
    assert list(times) == sorted(times)
    assert times[-1] <= 1.0
    assert abs(shares[0] - 82 / 282) < 0.3
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_many_parameters_are_few_pieces_and_unused_ones_come_last() -> None:
    layers = [nn.Linear(5, 5) for _ in range(60)]
    unused = nn.Linear(5, 5)
    ticks = itertools.count()
    parameters = [p for layer in (*layers, unused) for p in layer.parameters()]
    readiness = Readiness(parameters, lambda: float(next(ticks)))
    readiness.begin()
    nn.Sequential(*layers)(torch.ones(2, 5)).sum().backward()
    readiness.end(float(next(ticks)))
    assert len(readiness.pieces) == PIECES
    assert readiness.pieces[-1][1] == 1.0
    assert abs(sum(share for share, _ in readiness.pieces) - 1.0) < 1e-9
