"""torch's kernels called directly: the same bits as ``optimizer.step()``, or left to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phalanx.sync.state.fused_step import step_directly
from phalanx.train.adopt import torch_patches

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.8, nesterov=True, maximize=True, weight_decay=0.01, fused=True
    ),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(
        p, lr=0.01, amsgrad=True, betas=(0.8, 0.9), eps=1e-3, maximize=True, fused=True
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3, fused=True),
}


def _made(make: Make) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, n)) for n in (1, 5, 17)]
    return parameters, make(parameters)


def _give(parameters: list[nn.Parameter], step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    found = [torch.randn(p.shape, generator=generator) for p in parameters]
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad = gradient
    return found


def _kept(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    state = optimizer.state_dict()["state"]
    return [value for kept in state.values() for value in kept.values() if value is not None]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits(name: str) -> None:
    (theirs, plain), (ours, direct) = (_made(OPTIMIZERS[name]) for _ in range(2))
    schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (plain, direct)]
    used, good, bad = 0, torch.zeros(()), torch.ones(())
    for step in range(9):
        _give(theirs, step)
        gradients, skipped = _give(ours, step), step in (3, 4)
        plain.found_inf = bad if skipped else good  # type: ignore[attr-defined]
        plain.step()
        if step_directly(direct, gradients, bad if skipped else good):
            used += 1
        else:
            direct.step()
        for schedule in schedules:
            schedule.step()
    assert used == (9 if name == "sgd" else 8)  # the first one makes the state
    for one, other in zip([*theirs, *_kept(plain)], [*ours, *_kept(direct)], strict=True):
        assert torch.equal(one, other)


def _own_step(optimizer: torch.optim.Optimizer) -> None:
    plain = optimizer.step
    optimizer.step = lambda *a, **k: plain(*a, **k)  # type: ignore[method-assign]


def _own_step_below_a_schedule(optimizer: torch.optim.Optimizer) -> None:
    plain = type(optimizer).step

    def step(self: Any, *args: Any) -> Any:
        return plain(self, *args)

    optimizer.step = step.__get__(optimizer)  # type: ignore[method-assign]
    torch.optim.lr_scheduler.StepLR(optimizer, 2)


def _own_step_that_looks_like_torchs(optimizer: torch.optim.Optimizer) -> None:
    @functools.wraps(type(optimizer).step)
    def step(self: Any, *args: Any) -> None:
        """Of a script."""

    optimizer.step = step.__get__(optimizer)  # type: ignore[method-assign]


def _lost_state(optimizer: torch.optim.Optimizer) -> None:
    next(iter(optimizer.state.values())).clear()


def _second_group(optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize(
    "change",
    [
        _own_step, _own_step_below_a_schedule, _own_step_that_looks_like_torchs, _lost_state,
        _second_group,
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_torch(
    change: Callable[[torch.optim.Optimizer], None],
) -> None:
    parameters, optimizer = _made(OPTIMIZERS["adam"])
    _give(parameters, 0)
    optimizer.step()
    change(optimizer)
    before = [p.detach().clone() for p in parameters]
    assert not step_directly(optimizer, _give(parameters, 1), torch.zeros(()))
    assert all(torch.equal(*pair) for pair in zip(before, parameters, strict=True))


def test_a_parameter_without_a_gradient() -> None:
    parameters, optimizer = _made(OPTIMIZERS["sgd"])
    assert not step_directly(optimizer, _give(parameters, 1)[1:], torch.zeros(()))


@pytest.mark.parametrize("looks_like_torchs", [False, True])
def test_a_step_that_a_library_has_replaced(
    looks_like_torchs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters, optimizer = _made(OPTIMIZERS["sgd"])
    gradients = _give(parameters, 1)
    assert step_directly(optimizer, gradients, torch.zeros(()))
    plain, theirs = torch.optim.SGD.step, lambda *_: None
    replaced = functools.wraps(plain)(theirs) if looks_like_torchs else theirs
    monkeypatch.setattr(torch.optim.SGD, "step", replaced)
    assert not step_directly(optimizer, gradients, torch.zeros(()))


def test_the_step_that_every_worker_has_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, optimizer = _made(OPTIMIZERS["momentum"])
    _give(parameters, 0)
    optimizer.step()
    monkeypatch.setattr(torch.optim.SGD, "step", torch.optim.SGD.step)  # to be put back
    torch_patches._wrap_step(torch.optim.SGD)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert step_directly(optimizer, _give(parameters, 1), torch.zeros(()))
