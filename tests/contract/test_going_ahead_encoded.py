"""Gradients that leave before their step through a codec: bit for bit what comes of them at it."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import AWAY
from early_counts import count_early
from test_going_ahead import Across, Meddling, deep_model, halve_unseen
from torch import nn
from training import Training

from phalanx.sync.codec.quantised import Int8
from phalanx.sync.collective.algorithms import ahead
from phalanx.sync.reduce import early_gradients
from phalanx.sync.reduce.early_encoded import EncodedSum
from phalanx.sync.state.gradients import get_grad
from phalanx.sync.state.staging import Staging

pytestmark = pytest.mark.skipif(
    AWAY or ranks.HOSTS > 1, reason="the whole contract goes ahead there"
)

CODECS = ("fp16", "bf16", "int8:block=8", "int4:block=6")
SEVERAL = [(2, 2), (3, 3), (4, 3)]
"""Workers and hosts."""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often something went before it was offered, and how often it went in vain."""
    monkeypatch.setattr(early_gradients, "LEAST", 1)
    monkeypatch.setattr(early_gradients, "REST", 1)
    monkeypatch.setattr(ranks, "places", lambda: None)
    return count_early(EncodedSum, monkeypatch)


def _same_bits(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Training], hosts: int
) -> Training:
    monkeypatch.setattr(ranks, "HOSTS", hosts)
    monkeypatch.setattr(ahead, "WORTHWHILE", 0)
    found = make("early").run()
    monkeypatch.setattr(ahead, "WORTHWHILE", sys.maxsize)
    expected = make("late").run()
    for rank in range(found.workers):
        for name, value in expected.state(rank).items():
            assert torch.equal(found.state(rank)[name], value), name
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("workers", "hosts"), SEVERAL)
def test_a_step_begins_in_the_backward_pass(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: Counter[str],
    codec: str,
    workers: int,
    hosts: int,
) -> None:
    """The last batch of a pass leaves some workers nothing to give."""

    def make(name: str) -> Training:
        spec = f"allreduce+{codec}"
        return Training(tmp_path / name, spec, workers, model=deep_model, samples=61)

    found = _same_bits(monkeypatch, make, hosts)
    assert found.counts() == found.once()
    assert counts["early"] > (10 if workers == hosts else 0)
    assert not counts["in vain"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("workers", [2, 4])
def test_as_from_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str], codec: str, workers: int
) -> None:
    monkeypatch.setattr(Staging, "away", True)

    def make(name: str) -> Training:
        return Training(tmp_path / name, f"allreduce+{codec}", workers, model=deep_model)

    _same_bits(monkeypatch, make, 2)
    assert counts["early"] > 0


@pytest.mark.parametrize("codec", ["fp16", "int8:block=8"])
@pytest.mark.parametrize("only", [None, 0, 1, 3])
def test_what_went_in_vain_leaves_no_trace(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: Counter[str],
    codec: str,
    only: int | None,
) -> None:
    def make(name: str) -> Training:
        spec = f"allreduce+{codec}"
        training = Meddling(tmp_path / name, spec, 4, model=deep_model, epochs=4)
        training.meddle, training.only = halve_unseen, only
        return training

    _same_bits(monkeypatch, make, 2)
    assert counts["in vain"] > 0
    assert counts["early"] > 0


def test_chance_moves_on_once_in_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str]
) -> None:
    """Neither with what goes early, nor with what is thrown away."""
    states: dict[str, list[bytes]] = {}
    advance, encode = Int8.advance, Int8.encode

    def note(self: Any) -> None:
        states[name].append(self.export_state()["generator"].numpy().tobytes())

    def advanced(self: Any, size: int) -> None:
        advance(self, size)
        note(self)

    def encoded(self: Any, flat: torch.Tensor) -> Any:
        payload = encode(self, flat)
        note(self)
        return payload

    def make(kind: str) -> Training:
        nonlocal name
        name = kind
        states[kind] = []
        training = Meddling(tmp_path / kind, "allreduce+int8:block=8", 2, model=deep_model)
        training.meddle, training.only = halve_unseen, 1
        return training

    name = ""
    monkeypatch.setattr(Int8, "advance", advanced)
    monkeypatch.setattr(Int8, "encode", encoded)
    _same_bits(monkeypatch, make, 2)
    assert counts["in vain"] > 0
    assert sorted(states["early"]) == sorted(states["late"])
    assert len(set(states["early"])) == 2 * 8, "two hosts, two passes of four steps"


@pytest.mark.parametrize("codec", ["fp16", "int4:block=6"])
def test_a_worker_that_is_idle_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str], codec: str
) -> None:
    """Of three workers on two hosts the last one goes ahead, is idle, and goes on."""

    def make(name: str) -> Training:
        return Across(tmp_path / name, f"allreduce+{codec}", 3, model=deep_model, epochs=3)

    _same_bits(monkeypatch, make, 2)
    assert counts["early"] > 0


def spoil(model: nn.Module, step: int) -> None:
    if step == 2:
        for parameter in model.parameters():
            if (gradient := get_grad(parameter)) is not None:
                gradient.view(-1)[0] = math.nan


@pytest.mark.parametrize("codec", ["fp16", "int8:block=8"])
def test_a_step_that_is_not_finite_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str], codec: str
) -> None:
    def make(name: str) -> Training:
        training = Meddling(tmp_path / name, f"allreduce+{codec}", 2, model=deep_model)
        training.meddle, training.only = spoil, 1
        return training

    found = _same_bits(monkeypatch, make, 2)
    assert all(bool(value.isfinite().all()) for value in found.state().values())
    assert counts["early"] > 0


@pytest.mark.parametrize("codec", ["topk:ratio=0.2", "threshold", "powersgd:rank=1"])
def test_what_needs_the_whole_goes_with_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str], codec: str
) -> None:
    def make(name: str) -> Training:
        return Training(tmp_path / name, f"allreduce+{codec}", 2, model=deep_model)

    _same_bits(monkeypatch, make, 2)
    assert not counts
