"""Loops that decide how many batches they take; loaders that a script makes anew in each epoch."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from adopted_runs import adopted
from ranks import as_ranks
from torch.utils.data import DataLoader, Dataset, TensorDataset

import phalanx
from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.train.adopt.script_length import needs_equal_batches

ASKS = "import sys\ndef ask(counts):\n    return counts(sys._getframe())\n"


@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("transformers.trainer", True),
        ("lightning.pytorch.loops.fit_loop", True),
        ("pytorch_lightning.loops.fit_loop", True),
        ("train", False),
        ("lightning.fabric.fabric", False),
    ],
)
def test_known_by_its_module(module: str, counts: bool) -> None:
    names: dict[str, object] = {"__name__": module}
    exec(ASKS, names)
    assert names["ask"](needs_equal_batches) is counts  # type: ignore[operator]


LOADER = """
import sys
from phalanx.train.adopt.script_length import needs_equal_batches

class Loader:
    def __iter__(self):
        self.found = needs_equal_batches(sys._getframe())
        return iter(range(3))

def watched(batches):
    for batch in batches:
        yield batch

loader = Loader()
"""


@pytest.mark.parametrize(
    ("loop", "leaves"),
    [
        ("for i in loader:\n    if i: break", True),
        ("for i, x in enumerate(loader):\n    try:\n        if i: break\n    finally: pass", True),
        ("for i, x in zip(range(9), watched(loader)):\n    if i: break", True),
        ("def epoch():\n    for i in loader:\n        while i: return\nepoch()", True),
        ("for i in loader:\n    pass", False),
        ("for i in loader:\n    for k in (1, 2):\n        break", False),
        ("for i in loader:\n    def closure():\n        return i", False),
        ("for epoch in range(2):\n    for i in loader: pass\n    break", False),
        ("found = list(loader)", False),
    ],
)
def test_loops_that_may_end_early_are_seen(tmp_path: Path, loop: str, leaves: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADER + loop)
    assert runpy.run_path(str(script))["loader"].found is leaves


EPOCHS = 6
SCRIPT = """
import gc, os, weakref
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from phalanx.core.context import current

class Numbers(Dataset):
    def __init__(self, epoch):
        odd = {odd} and epoch == 4 and current().environment["PHALANX_RANK"] == "1"
        self.x = torch.arange(12.0).reshape(12, 1) + epoch + odd
    def __len__(self):
        return 12
    def __getitem__(self, k):
        return self.x[k], self.x[k]

torch.manual_seed(0)
model = nn.Linear(1, 1)
model.train({training})
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
made, alive = [], []
for epoch in range(6):
    data = Numbers(epoch)
    made.append(weakref.ref(data))
    if {tensors}:
        data = TensorDataset(data.x, data.x)
        made[-1] = weakref.ref(data)
    if {training} or epoch == 0:  # in eval mode the same one has to come again
        loader = DataLoader(data, batch_size=4, shuffle=True)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    del x, y
    gc.collect()
    alive.append(sum(one() is not None for one in made))
RESULT = {{"seen": [], "alive": alive}}
"""


def _script(folder: Path, tensors: bool = False, odd: bool = False, training: bool = True) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(tensors=tensors, odd=odd, training=training))
    return path


@pytest.mark.parametrize(
    ("tensors", "training", "workers"),
    [
        (False, True, 2),
        pytest.param(True, True, 2, marks=pytest.mark.slow),
        pytest.param(False, False, 2, marks=pytest.mark.slow),
    ],
)
def test_adopted(tmp_path: Path, tensors: bool, training: bool, workers: int) -> None:
    script = _script(tmp_path, tensors, training=training)
    for ended in adopted(script, workers, tmp_path / "run"):
        assert max(ended.result["alive"]) <= 2


def test_all_of_them_are_compared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="different data to train on"):
        adopted(_script(tmp_path, odd=True), 2, tmp_path / "run")


class _Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    alive = 0

    def __init__(self) -> None:
        self.x = torch.arange(12.0).reshape(12, 1)
        _Pairs.alive += 1

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[k], self.x[k]

    def __del__(self) -> None:
        _Pairs.alive -= 1


@pytest.mark.parametrize("kind", ["loader", "dataset", "tensors"])
def test_joined(tmp_path: Path, kind: str) -> None:
    most = []

    def work(rank: int) -> None:
        model = torch.nn.Linear(1, 1)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.001))
        for _ in run.epochs(EPOCHS):
            pairs = _Pairs()
            data: Any = pairs if kind != "tensors" else TensorDataset(pairs.x, pairs.x)
            if kind == "loader":
                data = DataLoader(pairs, batch_size=4, shuffle=True)
            for x, y in run.batches(data, batch=4):
                run.backward(torch.nn.functional.mse_loss(model(x), y))
                run.step()
            most.append(max(_Pairs.alive, len(run._parts.readers._known)))

    as_ranks(1, tmp_path, work, RunSettings())
    assert max(most) <= 2
