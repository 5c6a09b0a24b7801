"""Steps that are skipped on the device: as if the host had asked first, and heard of in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from phalanx.sync.arena.clock import MonotonicClock
from phalanx.sync.state.device_skips import BLOCK, LAG, DeviceSkips, make_fused
from phalanx.sync.strategies.single import Single, SingleOnGpu

CPU = torch.device("cpu")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def _backward(model: nn.Module, step: int, bad: bool) -> None:
    x = torch.randn(4, 5, dtype=torch.double, generator=torch.Generator().manual_seed(step))
    model(x).square().mean().backward()
    if bad:
        weight = model[0].weight  # type: ignore[index]
        weight.grad[0, 0] = float("nan") if step % 2 else float("inf")


def _on_gpu(optimizer: torch.optim.Optimizer, monkeypatch: pytest.MonkeyPatch) -> SingleOnGpu:
    made = SingleOnGpu(optimizer, MonotonicClock(), lambda _: None)

    def begin(gradients: list[Tensor]) -> None:
        made._tried = made._ours = True
        assert make_fused(optimizer, gradients) is True
        made._skips = DeviceSkips(optimizer, CPU)

    monkeypatch.setattr(made, "_begin", begin)
    return made


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [{0}, {1, 2}, {29}, {BLOCK - 1, BLOCK, 15, 16, 20}])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_bad_steps_are_skipped_and_heard_of_in_order(
    name: str, bad: set[int], clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, skipping = _model(), _model()
    plain = Single(OPTIMIZERS[name](asked.parameters()), MonotonicClock())
    on_gpu = _on_gpu(OPTIMIZERS[name](skipping.parameters()), monkeypatch)
    heard: list[bool] = []
    for step in range(30):
        for model in (asked, skipping):
            _backward(model, step, step in bad)
        assert (plain.exchange(0.5, clip).refused is not None) == (step in bad)
        timing = on_gpu.exchange(0.5, clip)
        if timing.judged:
            heard.append(timing.refused is not None)
        assert step - len(heard) < BLOCK + LAG
        assert all(p.grad is None for p in skipping.parameters())
    heard += [timing.refused is not None for timing in on_gpu.settle()]
    assert heard == [step in bad for step in range(30)]
    assert on_gpu.settle() == []
    for one, other in zip(asked.parameters(), skipping.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("without", [{5}, {1, 3, 5, 7, 9, 11, 13, 15, 17, 19}, {*range(3, 40)}])
def test_steps_without_gradients_keep_the_order(
    without: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model()
    on_gpu = _on_gpu(OPTIMIZERS["momentum"](model.parameters()), monkeypatch)
    heard: list[bool] = []
    for step in range(40):
        if step not in without:
            _backward(model, step, step % 4 == 2)
        timing = on_gpu.exchange(1.0)
        heard += [timing.refused is not None] if timing.judged else []
        assert step - len(heard) < BLOCK + 2 * LAG
    heard += [timing.refused is not None for timing in on_gpu.settle()]
    assert heard == [step % 4 == 2 and step not in without for step in range(40)]


def test_an_optimizer_that_changed_is_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, more = _model(), nn.Parameter(torch.ones(3, dtype=torch.double))
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    on_gpu = _on_gpu(optimizer, monkeypatch)
    _backward(model, 0, False)
    on_gpu.exchange(1.0)
    optimizer.add_param_group({"params": [more]})
    (3 * more).sum().backward()
    on_gpu.exchange(1.0)
    # The gradient of 3 counts 1.9 times: its first momentum is itself.
    assert torch.allclose(more, torch.full((3,), 0.43, dtype=torch.double))
    assert on_gpu._over
    assert optimizer.param_groups[0]["fused"] is None


def _gradients(model: nn.Module) -> list[Tensor]:
    _backward(model, 0, False)
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
        (lambda p: torch.optim.Adam(p, fused=True), None),
        (lambda p: torch.optim.Adam(p, foreach=True), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), False),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), False),
        (lambda p: torch.optim.RMSprop(p), False),
    ],
)
def test_which_optimizers_are_fused(
    make: Callable[[Any], torch.optim.Optimizer], expected: bool | None
) -> None:
    model = _model()
    optimizer = make(model.parameters())
    before = [dict(g) for g in optimizer.param_groups]
    assert make_fused(optimizer, _gradients(model)) is expected
    if expected is False:
        assert [dict(g) for g in optimizer.param_groups] == before


def test_the_same_bits_every_time_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert make_fused(OPTIMIZERS["adam"](model.parameters()), _gradients(model)) is False


def test_sparse_gradients_are_left_alone() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    model(torch.tensor([1, 2])).sum().backward()
    assert model.weight.grad is not None
    assert make_fused(torch.optim.SGD(model.parameters(), lr=0.1), [model.weight.grad]) is False


def test_momentum_that_is_not_there_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the script has thrown its state away, and for a parameter that comes late."""
    asked, skipping = _model(), _model()
    plain, own = (OPTIMIZERS["momentum"](m.parameters()) for m in (asked, skipping))
    single, on_gpu = Single(plain, MonotonicClock()), _on_gpu(own, monkeypatch)
    for step in range(6):
        for model, optimizer in ((asked, plain), (skipping, own)):
            if step == 3:
                optimizer.state.clear()
            _backward(model, step, step == 3)
            if step < 2:
                model[2].weight.grad = None  # type: ignore[index]
        single.exchange(1.0)
        on_gpu.exchange(1.0)
    for one, other in zip(asked.parameters(), skipping.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


def _hook_of_all(optimizer: torch.optim.Optimizer, hook: Callable[..., None]) -> Any:
    return register_optimizer_step_post_hook(hook)


@pytest.mark.parametrize(
    "register",
    [
        torch.optim.Optimizer.register_step_post_hook,
        torch.optim.Optimizer.register_step_pre_hook,
        _hook_of_all,
    ],
)
def test_hooks_of_a_script_are_called_for_real_steps_only(
    register: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, called = _model(), []
    optimizer = OPTIMIZERS["adam"](model.parameters())
    on_gpu = _on_gpu(optimizer, monkeypatch)
    _backward(model, 0, False)
    on_gpu.exchange(1.0)
    hook = register(optimizer, lambda *_: called.append(1))
    try:
        for step in range(1, 4):
            _backward(model, step, step == 2)
            on_gpu.exchange(1.0)
    finally:
        hook.remove()
    assert len(called) == 2
