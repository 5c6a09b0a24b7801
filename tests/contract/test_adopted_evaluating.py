"""What an unchanged script decides after a pass, it decides alike on all workers, also where these
run freely: they evaluate the same weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from adopted_runs import adopted
from devices import AWAY
from on_hosts import HOSTS

from phalanx.core.errors import InputError

pytestmark = pytest.mark.skipif(AWAY or HOSTS > 1, reason="workers in turns")
FREE = ["async", "async:overlap=yes", "ssp:bound=3", "dssp", "groups:size=2"]
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(84, 5)
data = TensorDataset(x, (x @ torch.randn(5, 3)).argmax(1), torch.arange(84))
loader = DataLoader(data, batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
RESULT = {"seen": [], "losses": [], "rates": []}

def epoch(number):
    model.train()
    for step, (a, b, ids) in enumerate(loader):
        RESULT["seen"].append((number, ids.tolist()))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        LEAVE

best, waited = float("inf"), 0
for number in range(12):
    epoch(number)
    model.eval()
    with torch.no_grad():
        found = [nn.functional.cross_entropy(model(a), b) for a, b, _ in DataLoader(data, 20)]
    loss = float(sum(found))
    scheduler.step(loss)
    RESULT["losses"].append(loss)
    RESULT["rates"].append(optimizer.param_groups[0]["lr"])
    best, waited = (loss, 0) if loss < 0.98 * best else (best, waited + 1)
    if waited == 2:
        break
"""


def _written(folder: Path, leave: str = "pass") -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("LEAVE", leave), encoding="utf-8")
    return path


@pytest.mark.parametrize("strategy", [*FREE, "allreduce@0.2/async"])
def test_all_evaluate_the_same_weights(tmp_path: Path, strategy: str) -> None:
    found = adopted(_written(tmp_path), 3, tmp_path / "run", strategy=strategy)
    first = found[0].result
    assert len(first["losses"]) > 1
    for ended in found[1:]:
        assert ended.result["losses"] == first["losses"]
        assert ended.result["rates"] == first["rates"]


@pytest.mark.parametrize("strategy", FREE)
def test_all_may_leave_their_loop_after_the_same_batch(tmp_path: Path, strategy: str) -> None:
    script = _written(tmp_path, "if step == 2: break")
    found = adopted(script, 3, tmp_path / "run", strategy=strategy)
    first = found[0].result
    assert len(first["losses"]) > 1
    assert all(ended.result["losses"] == first["losses"] for ended in found)
    seen = sum((ended.seen() for ended in found), Counter[tuple[int, int]]())
    assert set(seen.values()) == {1}
    assert len(seen) == 36 * len(first["losses"])


@pytest.mark.parametrize("strategy", ["async", "ssp:bound=3"])
def test_leaving_it_after_different_batches_is_refused(tmp_path: Path, strategy: str) -> None:
    script = _written(tmp_path, "if 0 in ids: break")
    with pytest.raises(InputError, match=r"diverged.* left its loop after"):
        adopted(script, 3, tmp_path / "run", strategy=strategy)
