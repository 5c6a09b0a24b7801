"""``fit(compile="reduce-overhead")``: CUDA graphs, whose outputs the next call overwrites."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import CompileMode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _difference(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Both outputs are needed until the backward pass, which comes after the second call."""
    left, right, targets = batch
    return model(left) - 0.5 * model(right), targets


@pytest.mark.timeout(180)
def test_a_model_that_is_called_twice_in_a_step(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda:0")
    data = tuple(torch.randn(320, n, device=device) for n in (16, 16, 4))
    first = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    modes: tuple[CompileMode, ...] = ("off", "reduce-overhead")
    models = {mode: copy.deepcopy(first) for mode in modes}
    for mode, model in models.items():
        torch.manual_seed(1)
        phalanx.fit(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            loss=nn.MSELoss(),
            train=data,
            epochs=3,
            batch=32,
            forward=_difference,
            compile=mode,
        )
    compiled = models["reduce-overhead"]._compiled_call_impl
    assert compiled is not None and compiled._compiled  # type: ignore[attr-defined]
    assert "failed" not in capfd.readouterr().err
    for before, left, right in zip(
        first.parameters(), *(m.parameters() for m in models.values()), strict=True
    ):
        assert not torch.equal(before, left)
        torch.testing.assert_close(right, left, rtol=1e-3, atol=1e-4)
