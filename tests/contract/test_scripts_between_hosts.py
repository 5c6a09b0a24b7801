"""Scripts that do this and that in their loop, on two hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
import torch
from devices import AWAY
from plain_compare import assert_as_plain, assert_same_optimizer, hold
from plain_worlds import train_plain, train_workers
from test_against_plain_torch import TABLE

from phalanx.sync.collective.algorithms import ahead
from phalanx.sync.reduce import early_gradients

pytestmark = pytest.mark.skipif(
    AWAY or ranks.HOSTS > 1, reason="the whole contract runs elsewhere already"
)


LATER = ["unfrozen after a few batches", "added at an epoch"]
CHOICES = ["saved by the first", "one cycle, idle"]
BY_TURNS = ["clip: norm", "clip each time", "clip: look, idle", "a declared sum"]


@pytest.fixture(params=["ahead", pytest.param("at the step", marks=pytest.mark.slow)])
def two_hosts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Gradients leave at their step, or as soon as they are there."""
    monkeypatch.setattr(ranks, "HOSTS", 2)
    monkeypatch.setattr(ranks, "places", lambda: None)
    if request.param == "ahead":
        monkeypatch.setattr(ahead, "WORTHWHILE", 0)
        monkeypatch.setattr(early_gradients, "LEAST", 1)


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("name", [*LATER, *CHOICES, *BY_TURNS])
def test_between_two_hosts_too(tmp_path: Path, name: str) -> None:
    """Two workers on the first, one on the second."""
    hold(TABLE[name], 3, tmp_path)


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("strategy", ["async", "ssp", "localsgd", "bsp"])
@pytest.mark.parametrize("name", [*LATER, *CHOICES])
def test_every_strategy_between_two_hosts(tmp_path: Path, name: str, strategy: str) -> None:
    script = TABLE[name]
    ended = train_workers(script, 3, tmp_path, strategy)
    wanted = train_plain(script)
    assert any(outcome.rates for outcome in ended)
    for outcome in ended:
        if outcome.rates:  # without a batch, a worker's script never advances its schedule
            assert outcome.last_rates == pytest.approx(wanted.last_rates, rel=1e-9)
        assert outcome.weights.keys() == wanted.weights.keys()
        for key, value in outcome.weights.items():
            assert torch.equal(value, ended[0].weights[key]), key
            assert bool(value.isfinite().all()), key
    if strategy == "bsp":
        for outcome in ended:
            assert_as_plain(outcome, wanted)
    if strategy != "localsgd":  # where each worker has a state of its own
        assert_same_optimizer(ended[0].optimizer, ended[-1].optimizer, "optimizer at the end")
