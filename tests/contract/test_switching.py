"""A switch hands over parameters and optimizer slots bit for bit, and every worker agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from ranks import as_ranks
from torch import Tensor, nn

import phalanx
from phalanx.core.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.observe.events import Switched, read_events
from phalanx.train.shared_engine import SharedEngine

OPTIMIZERS = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
}


def _states(engine: SharedEngine) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in engine._strategies[0].export_state().items()}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["allreduce@0.5/async", "async@0.5/allreduce"])
def test_the_hand_over_is_bit_identical(
    tmp_path: Path, strategy: str, optimizer: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[dict[str, Tensor]] = []
    after: list[dict[str, Tensor]] = []
    entering = SharedEngine.enter

    def spied(self: SharedEngine, phase: int) -> float | None:
        if phase == self.phase:
            return entering(self, phase)
        self.barrier()  # the last old update of everyone is applied
        if self.rank == 0:
            before.append(_states(self))
        self.barrier()
        applied = entering(self, phase)
        if self.rank == 0:
            after.append(_states(self))
        self.barrier()
        return applied

    monkeypatch.setattr(SharedEngine, "enter", spied)
    x, y = torch.randn(96, 8), torch.randint(0, 3, (96,))

    def work(rank: int) -> dict[str, Any]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 3))
        made = OPTIMIZERS[optimizer](model)
        loss = nn.functional.cross_entropy
        phalanx.fit(model, optimizer=made, loss=loss, train=(x, y), epochs=3, batch=12)
        return model.state_dict()

    ended = as_ranks(workers, tmp_path, work, RunSettings(strategy=strategy))
    assert len(before) == len(after) == 1
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name]), name
    slots = [name for name in before[0] if not name.startswith(("parameters", "steps"))]
    assert slots and all(bool(before[0][name].any()) for name in slots)
    for state in ended[1:]:
        assert all(torch.equal(state[k], ended[0][k]) for k in state)
    _assert_told_once(tmp_path, strategy)


def _assert_told_once(folder: Path, strategy: str) -> None:
    told = [e for e in read_events(RunPaths(folder).events_of(0)) if isinstance(e, Switched)]
    assert len(told) == 1
    names = strategy.replace("@0.5", "").split("/")
    assert [told[0].before, told[0].after] == names
    assert told[0].at_epoch == pytest.approx(1.5)
    assert told[0].pause >= 0


def test_several_phases_and_back(tmp_path: Path) -> None:
    x, y = torch.randn(48, 4), torch.randn(48, 1)

    def work(rank: int) -> None:
        model = nn.Linear(4, 1)
        made = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        phalanx.fit(
            model, optimizer=made, loss=nn.functional.mse_loss, train=(x, y), epochs=4, batch=8
        )

    spec = "allreduce@1e/async@0.5/allreduce@3e/async"
    as_ranks(2, tmp_path, work, RunSettings(strategy=spec))
    told = [e for e in read_events(RunPaths(tmp_path).events_of(0)) if isinstance(e, Switched)]
    assert [(e.before, e.after, e.at_epoch) for e in told] == [
        ("allreduce", "async", 1.0),
        ("async", "allreduce", 2.0),
        ("allreduce", "async", 3.0),
    ]
    assert msgspec.json.encode(told[0])
