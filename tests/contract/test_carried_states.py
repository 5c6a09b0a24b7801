"""Models with a state that goes from batch to batch: columns are kept, or the script is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import as_ranks
from strategy_cases import FREE
from torch import Tensor, nn

import phalanx
from phalanx.core.context import advice_on
from phalanx.core.errors import InputError, PeerLost
from phalanx.core.settings import RunSettings
from phalanx.observe.events.emit import EventWriter
from phalanx.sync.arena.clock import MonotonicClock
from phalanx.train.step.carried_state import CarriedState
from phalanx.train.step.stopwatch import Stopwatch

COLUMNS, CHUNKS, LENGTH = 6, 10, 5


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True)
        self.out = nn.Linear(4, 9)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, object]:
        hidden, state = self.lstm(self.embed(x), state)
        return self.out(hidden), state


def _batchified() -> tuple[Tensor, Tensor]:
    """Six streams of text; sample 6·k + c is the k-th chunk of stream c, beside its number."""
    text = torch.randint(
        0, 9, (COLUMNS, CHUNKS, LENGTH), generator=torch.Generator().manual_seed(1)
    )
    return text.transpose(0, 1).reshape(-1, LENGTH), torch.arange(COLUMNS * CHUNKS)


def _train(fixed: bool) -> tuple[list[Tensor], list[list[int]]]:
    torch.manual_seed(0)
    model, seen = Words().double(), []
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.3))
    for _ in run.epochs(2):
        state = None
        for x, numbers in run.batches(_batchified(), batch=COLUMNS, fixed=fixed):
            seen.append([int(n) % COLUMNS for n in numbers])
            scores, state = model(x, state)
            state = tuple(part.detach() for part in state)  # type: ignore[attr-defined]
            error = nn.functional.cross_entropy(scores[:, :-1].reshape(-1, 9), x[:, 1:].reshape(-1))
            run.backward(error)
            run.step()
    return [p.detach() for p in model.parameters()], seen


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("strategy", ["allreduce", "bsp"])
def test_columns_are_kept_and_the_result_is_that_of_one_process(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    chosen = RunSettings(strategy=strategy, slow=[1.0, 0.1], balance="auto")
    alone, _ = as_ranks(1, tmp_path / "alone", lambda _: _train(True), RunSettings())[0]
    for weights, seen in as_ranks(workers, tmp_path / "all", lambda _: _train(True), chosen):
        assert all(columns == seen[0] for columns in seen)
        assert all((a - b).abs().max() <= 1e-10 for a, b in zip(weights, alone, strict=True))


def test_a_carried_state_is_noticed(tmp_path: Path) -> None:
    with pytest.raises((InputError, PeerLost)) as caught:
        as_ranks(2, tmp_path, lambda _: _train(False), RunSettings())
    assert "carries a hidden state from batch to batch" in str(caught.value)
    assert "fixed=True" in str(caught.value)


@pytest.mark.parametrize("strategy", [*FREE, "allreduce@0.5/async"])
def test_free_workers_cannot_keep_columns(tmp_path: Path, strategy: str) -> None:
    with pytest.raises((InputError, PeerLost), match="fixed=True excludes"):
        as_ranks(2, tmp_path, lambda _: _train(True), RunSettings(strategy=strategy))


def _stopwatch(folder: Path) -> Stopwatch:
    return Stopwatch(MonotonicClock(), EventWriter(folder / "events", 0))


def test_a_state_within_a_batch_and_one_at_evaluation_are_nobodys_business(tmp_path: Path) -> None:
    lstm = nn.LSTM(4, 4)
    stopwatch = _stopwatch(tmp_path)
    CarriedState([lstm], stopwatch)
    x, state = torch.ones(2, 3, 4), None
    for _ in range(3):
        stopwatch.received(0.0, 3)
        state = None
        for _ in range(2):
            _, state = lstm(x, state)
    stopwatch.received(0.0, 3)
    lstm.eval()
    lstm(x, state)


def test_an_error_about_sizes_gets_the_advice_when_the_batch_has_changed(tmp_path: Path) -> None:
    stopwatch = _stopwatch(tmp_path)
    watched = CarriedState([], stopwatch)
    error = RuntimeError("The size of tensor a (4) must match the size of tensor b (3)")
    for samples, advised in ((4, False), (4, False), (3, True)):
        stopwatch.received(0.0, samples)
        assert ("fixed=True" in advice_on(error)) is advised
    stopwatch.received(0.0, 4)
    watched.fixed = True
    assert advice_on(error) == advice_on(ValueError("size")) == ""
