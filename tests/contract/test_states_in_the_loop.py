"""What a script saves while it trains: its model, a part of it, its optimizer."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from plain_compare import assert_small
from plain_scripts import CLASSES, FEATURES, Script, data_of
from plain_worlds import as_workers
from strategy_cases import SAME_SUM
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])


@WORKERS
def test_the_state_of_a_part_is_small_on_disk(tmp_path: Path, workers: int) -> None:
    script = Script()

    def work(rank: int) -> int:
        model = nn.Sequential(nn.Linear(FEATURES, 2000), nn.Linear(2000, CLASSES)).double()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        file = io.BytesIO()
        for number, (x, y) in enumerate(run.batches(data_of(script), batch=script.batch)):
            run.backward(F.cross_entropy(model(x), y))
            run.step()
            if number == 2:
                torch.save(model[1].state_dict(), file)
        run.finish()
        return file.tell()

    own = 8 * (2000 * CLASSES + CLASSES)
    for size in as_workers(workers, tmp_path, work):
        assert own < size < own + 4000


@pytest.mark.parametrize("saver", ["all", "first"])
@pytest.mark.parametrize("strategy", SAME_SUM)
def test_the_state_of_an_optimizer_in_the_loop(tmp_path: Path, strategy: str, saver: str) -> None:
    """Each gradient is 1: after n steps Adam has 1 - 0.9ⁿ, and says n. Groups are equal."""
    x = torch.ones(48, 1, dtype=torch.float64)
    seen: list[tuple[int, dict[str, Any], dict[str, Tensor]]] = []

    def work(rank: int) -> None:
        model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-9)
        run = phalanx.join(model, optimizer)
        own = itertools.count(1)
        for _ in run.epochs(2):
            for (part,) in run.batches((x,), batch=12):
                run.backward(model(part).mean())
                run.step()
                number = next(own)
                if saver == "all" or run.is_first:
                    file = io.BytesIO()
                    torch.save([optimizer.state_dict(), model[0].state_dict()], file)
                    file.seek(0)
                    seen.append((number, *torch.load(file)))

    as_workers(4, tmp_path, work, strategy=strategy)
    assert seen
    for own, state, part in seen:
        slots = state["state"][0]
        steps = float(slots["step"])
        assert own <= steps <= 8 * 4
        assert torch.allclose(slots["exp_avg"], torch.full((3, 1), 1 - 0.9**steps).double())
        assert state["param_groups"][0]["lr"] == pytest.approx(1e-9)
        assert_small(part)
        assert_small(slots)
