"""Workers that do not do the same are told so; nobody waits for ever, nothing is mixed up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from torch import nn

import phalanx
from phalanx.core.errors import PhalanxError
from phalanx.core.settings import RunSettings
from phalanx.train.api.run import Run

X, Y = torch.randn(60, 4), torch.randint(0, 2, (60,))


def _epoch(run: Run, model: nn.Module, stop_after: int | None = None) -> None:
    for i, (x, y) in enumerate(run.batches((X, Y), batch=12)):
        if i == stop_after:
            return
        run.backward(nn.functional.cross_entropy(model(x), y))
        run.step(clip=1.0)


def _leaves_epochs(run: Run, model: nn.Module) -> None:
    for epoch in run.epochs(4):
        _epoch(run, model)
        if run.rank == 1 and epoch == 1:
            break


def _leaves_batches(run: Run, model: nn.Module) -> None:
    for _ in run.epochs(4):
        _epoch(run, model, stop_after=2 if run.rank == 1 else None)
        run.evaluate(phalanx.accuracy, (X, Y))


def _evaluates_alone(run: Run, model: nn.Module) -> None:
    for _ in run.epochs(4):
        _epoch(run, model)
        if run.is_first:
            run.evaluate(phalanx.accuracy, (X, Y))


@pytest.mark.parametrize("loop", [_leaves_epochs, _leaves_batches, _evaluates_alone])
def test_different_ways_end_with_a_clear_error(
    tmp_path: Path, loop: Callable[[Run, nn.Module], None]
) -> None:
    def work(rank: int) -> None:
        model = nn.Linear(4, 2)
        loop(phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1)), model)

    with pytest.raises(PhalanxError, match=r"diverged|has left|has ended") as caught:
        as_ranks(2, tmp_path, work, RunSettings(strategy="allreduce"))
    assert "run.stop()" in caught.value.remedy


def test_all_leaving_together_is_fine(tmp_path: Path) -> None:
    def work(rank: int) -> torch.Tensor:
        model = nn.Linear(4, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in run.epochs(10):
            _epoch(run, model)
            if epoch == 2:
                break
        return model.weight.detach()

    one, two = as_ranks(2, tmp_path, work, RunSettings(strategy="allreduce"))
    assert torch.equal(one, two)


def test_a_model_can_be_trained_after_all_left_the_loop_of_another(tmp_path: Path) -> None:
    def work(rank: int) -> torch.Tensor:
        for _ in range(2):
            model = nn.Linear(4, 2)
            run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for epoch in run.epochs(10):
                _epoch(run, model)
                if epoch == rank:  # when workers run freely they may leave at different times
                    break
        return model.weight

    assert len(as_ranks(2, tmp_path, work, RunSettings(strategy="async"))) == 2


@pytest.mark.parametrize("spec", ["allreduce", "async", "async@3e/allreduce"])
def test_a_stop_leaves_all_workers_with_the_same_epochs(tmp_path: Path, spec: str) -> None:
    def work(rank: int) -> int:
        model, epochs = nn.Linear(4, 2), 0
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in run.epochs(50):
            _epoch(run, model)
            epochs += 1
            if run.is_first and epoch == 2:
                run.stop()
        return epochs

    ended = as_ranks(3, tmp_path, work, RunSettings(strategy=spec))
    assert len(set(ended)) == 1
    assert ended[0] == 3 if spec == "allreduce" else 3 <= ended[0] < 50


@pytest.mark.parametrize("strategy", ["allreduce", "bsp"])
def test_steps_with_parts_of_different_batches_are_refused(tmp_path: Path, strategy: str) -> None:
    def work(rank: int) -> None:
        model = nn.Linear(4, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for i, (x, y) in enumerate(run.batches((X, Y), batch=12)):
            if i == 1 + rank:  # equally often, but another one on each worker
                continue
            run.backward(nn.functional.cross_entropy(model(x), y))
            run.step()

    with pytest.raises(PhalanxError, match="parts of different batches"):
        as_ranks(2, tmp_path, work, RunSettings(strategy=strategy))
