"""``torch.amp.GradScaler`` in a script's own loop: as in one process of plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from ranks import as_ranks
from strategy_cases import NAMES
from test_float16 import _model
from torch import Tensor, nn

import phalanx
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order
from phalanx.observe.summary.summary import summarise

SAMPLES, BATCH, EPOCHS, OVERFLOWS = 50, 12, 3, 4
"""The last batch has two samples: with three workers one of them has none."""
torch.manual_seed(5)
X = torch.randn(SAMPLES, 6)
Y = (X[:, 0] + X[:, 1] > 0).long()

pytestmark = pytest.mark.skipif(AWAY, reason="scalers of the processor")


def _scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)


def _loss(model: nn.Module, x: Tensor, y: Tensor, bad: bool) -> Tensor:
    error = nn.functional.cross_entropy(model(x), y)
    return error * float("inf") if bad else error


def _plain(way: str) -> tuple[dict[str, Tensor], float]:
    (model, optimizer), scaler, step = _model(), _scaler(), 0
    for epoch in range(EPOCHS):
        for some in order(SAMPLES, 1, epoch, True).split(BATCH):
            step += 1
            scaler.scale(_loss(model, X[some], Y[some], step == OVERFLOWS)).backward()
            if way == "clipped":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return dict(model.state_dict()), scaler.get_scale()


def _work(way: str, rank: int, workers: int) -> tuple[dict[str, Tensor], float]:
    (model, optimizer), scaler, step = _model(), _scaler(), 0
    run = phalanx.join(model, optimizer)
    for _ in run.epochs(EPOCHS):
        for x, y in run.batches((X, Y), batch=BATCH):
            step += 1
            bad = step == OVERFLOWS and rank == workers - 1
            run.backward(scaler.scale(_loss(model, x, y, bad)))
            if way == "run.step":
                run.step(scaler=scaler)
                continue
            if way == "clipped":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    return dict(model.state_dict()), scaler.get_scale()


@pytest.mark.parametrize("way", ["run.step", "scaler.step", "clipped"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_as_in_one_process(tmp_path: Path, workers: int, way: str) -> None:
    spec = "allreduce" if workers > 1 else "single"
    found = as_ranks(
        workers,
        tmp_path,
        lambda rank: _work(way, rank, workers),
        RunSettings(strategy=spec, seed=1),
    )
    weights, scale = _plain(way)
    for own, own_scale in found:
        assert own_scale == scale
        for name, value in weights.items():
            assert torch.allclose(own[name], value, rtol=0, atol=2e-6), name
    summary = summarise(RunPaths(tmp_path))
    assert [r.step for r in summary.nonfinite] == [OVERFLOWS]
    assert summary.train_loss is not None
    assert summary.train_loss < 2.0  # as it was before it was scaled


@pytest.mark.parametrize(
    ("spec", "way"),
    [*((name, "clipped") for name in NAMES), ("allreduce+int8", "run.step"), ("async", "run.step")],
)
def test_under_every_strategy(tmp_path: Path, spec: str, way: str) -> None:
    found = as_ranks(
        3, tmp_path, lambda rank: _work(way, rank, 3), RunSettings(strategy=spec, seed=1)
    )
    for weights, _ in found:
        assert all(bool(value.isfinite().all()) for value in weights.values())
    assert summarise(RunPaths(tmp_path)).nonfinite_steps == 1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_autocast_finds_its_scale(tmp_path: Path, kind: torch.dtype) -> None:
    """A first scale that is far too high is found without ending the run."""

    def work(rank: int) -> Any:
        model, optimizer = _model()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28, growth_interval=1000)
        run = phalanx.join(model, optimizer)
        for _ in run.epochs(6):
            for x, y in run.batches((X, Y), batch=BATCH):
                with torch.autocast("cpu", dtype=kind):
                    error = nn.functional.cross_entropy(model(x).float(), y)
                run.backward(scaler.scale(error))
                run.step(scaler=scaler)
        return scaler.get_scale(), model[0].weight.detach().clone()

    found = as_ranks(2, tmp_path, work, RunSettings(strategy="allreduce", on_nonfinite="stop"))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    skipped = summarise(RunPaths(tmp_path)).nonfinite_steps
    assert found[0][0] == 2.0 ** (28 - skipped)
    assert (skipped > 0) == (kind == torch.float16)


def test_an_optimizer_that_did_not_join_is_left_alone(tmp_path: Path) -> None:
    as_ranks(1, tmp_path, lambda rank: _work("run.step", rank, 1), RunSettings(strategy="single"))
    (model, optimizer), scaler = _model(), _scaler()
    before = model[0].weight.detach().clone()
    scaler.scale(_loss(model, X, Y, False)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model[0].weight)
