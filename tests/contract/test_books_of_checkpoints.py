"""A checkpoint holds exactly the updates of the samples that its books say were trained.

The parameters are counters: each update adds one to the counter of each of its samples. So the
parameters of a checkpoint say how often each sample is in it, whatever the workers were doing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from on_hosts import HOSTS
from strategy_cases import NAMES, OPTIONS, SWITCHED, quick
from torch import nn
from training import Training, made_data

import phalanx
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.tensor_files import load
from phalanx.train.control.directives import Directive, Kind

WORKERS, SAMPLES, BATCH, EPOCHS = 3, 240, 24, 3
SPEEDS = [0.01, 0.004, 0.007]  # steps long enough for shares to follow the speeds
if HOSTS:
    SPEEDS = [1.0, 0.4, 0.7]
PLAIN_OUTER = "diloco:every=3:rate=1:momentum=0"  # whose outer step is the mean itself
COUNTED = [spec for spec in [*NAMES, *OPTIONS, *SWITCHED] if "diloco" not in spec] + [PLAIN_OUTER]

pytestmark = pytest.mark.skipif(AWAY, reason="is about who has which samples, not about devices")


class Counting(Training):
    """Each sample's counter is a row of the embedding."""

    def _work(self, rank: int) -> Any:
        model, optimizer = self.models[rank], self.optimizers[rank]
        run = phalanx.join(model, optimizer)
        self._prepare(run)
        for _ in run.epochs(self.epochs):
            for _, _, numbers in run.batches(made_data(self.samples), batch=self.batch):
                run.backward(-self.batch * model(numbers).mean())
                run.step()


def _zeros() -> nn.Module:
    model = nn.Embedding(SAMPLES, 1)
    nn.init.zeros_(model.weight)
    return model


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def _counting(folder: Path, spec: str, workers: int = WORKERS, **settings: Any) -> Counting:
    chosen = {"checkpoint_epochs": 1, "balance": "off", **settings}
    commands = {at: Directive(Kind.SAVE) for at in range(2, 200, 3)}
    return Counting(
        folder, spec, workers, _zeros, _sgd, SAMPLES, EPOCHS, BATCH, commands=commands,
        settings=chosen,
    )  # fmt: skip


def _assert_as_in_the_books(folder: Path) -> list[tuple[int, int]]:
    """Of each checkpoint; returns the epochs and positions of all."""
    home, found = RunPaths(folder).checkpoints, []
    for number in shelf.numbers(home):
        path = home / f"{number:06d}"
        manifest = shelf.check(path)
        counts = load(path, manifest, None)["o0.parameters.0"].round(decimals=3)
        place = (manifest.epoch, manifest.position)
        assert set(counts.tolist()) <= {float(manifest.epoch), manifest.epoch + 1.0}, place
        assert counts.sum() == manifest.epoch * SAMPLES + manifest.position, place
        found.append(place)
    return found


@pytest.mark.parametrize("balance", ["off", "auto"])
@pytest.mark.parametrize("spec", COUNTED)
def test_each_checkpoint_holds_what_its_books_say(tmp_path: Path, spec: str, balance: str) -> None:
    saved = _counting(tmp_path, spec, slow=SPEEDS, balance=balance).run()
    places = _assert_as_in_the_books(tmp_path)
    assert {epoch for epoch, position in places if position == SAMPLES} == set(range(EPOCHS))
    for model in saved.models:
        assert model.weight.detach().round(decimals=3).unique().tolist() == [EPOCHS]


@pytest.mark.parametrize("spec", quick(COUNTED))
def test_a_resumed_run_of_other_workers_counts_each_sample_once(tmp_path: Path, spec: str) -> None:
    """Chunks of two workers are larger than those of three: the last of an epoch is short."""
    _counting(tmp_path / "saved", spec, slow=SPEEDS).run()
    home, places = RunPaths(tmp_path / "saved").checkpoints, []
    for number in shelf.numbers(home)[:3]:
        path = home / f"{number:06d}"
        folder = tmp_path / f"resumed-{number}"
        resumed = _counting(folder, spec, 2, slow=SPEEDS[:2], resume=str(path)).run()
        places += _assert_as_in_the_books(folder)
        for model in resumed.models:
            assert model.weight.detach().round(decimals=3).unique().tolist() == [EPOCHS]
    assert places
