"""An unchanged script evaluates after a pass, also where workers run freely: all see the same
weights and decide alike. Or within a pass: its loaders give what plain Python gets."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from adopted_runs import adopted, execute
from devices import AWAY
from forked_workers import ForkedRun, run_forked
from on_hosts import HOSTS
from plain_compare import assert_same_state

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


@pytest.fixture
def collected() -> Iterator[None]:
    """Loops of refused workers end here: within the next test they would set hooks."""
    yield
    gc.collect()


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("strategy", ["async", "ssp:bound=3"])
def test_leaving_it_after_different_batches_is_refused(tmp_path: Path, strategy: str) -> None:
    script = _written(tmp_path, "if 0 in ids: break")
    with pytest.raises(InputError, match=r"diverged.* left its loop after"):
        adopted(script, 3, tmp_path / "run", strategy=strategy)


# -- within a pass, on a loader with a generator of its own -----------------------------------

INSIDE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

torch.manual_seed(3)
x = torch.randn(22, 4, dtype=torch.float64)
data = TensorDataset(x, x[:, :1] * 2)
own = torch.Generator().manual_seed(5)
loader = DataLoader(data, 4, drop_last=True, LOADER)
model = nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
RESULT = {"figures": []}
for epoch in range(3):
    for step, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        if step == 1:
            with torch.no_grad():
                for c, d in EVALUATED:
                    RESULT["figures"].append(float(nn.functional.mse_loss(model(c), d)))
        LEAVE
RESULT["weights"] = model.state_dict()
"""
OWN = "shuffle=True, generator=own"
EVALUATED = {
    "itself": "loader",
    "other": "DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(9))",
    "same generator": "DataLoader(data, 5, shuffle=True, generator=own)",
}


def _inside(folder: Path, loader: str, evaluated: str, leave: str) -> Path:
    path, text = folder / "train.py", INSIDE.replace("EVALUATED", EVALUATED[evaluated])
    path.write_text(text.replace("LOADER", loader).replace("LEAVE", leave), encoding="utf-8")
    return path


def _run(script: Path, view: str) -> ForkedRun:
    folder = script.parent / "run"
    return run_forked(script, 2, folder, strategy="allreduce", view=view, check=12)


@pytest.mark.parametrize("evaluated", EVALUATED)
@pytest.mark.parametrize(
    ("loader", "leave", "view"),
    [
        (OWN, "pass", "parts"),
        (OWN, "if step == 3: break", "parts"),
        (OWN, "if step == 3: break", "whole"),
        ("shuffle=True", "if step == 3: break", "parts"),
        pytest.param("shuffle=True", "pass", "whole", marks=pytest.mark.slow),
    ],
)
def test_evaluated_inside_a_pass(
    tmp_path: Path, evaluated: str, loader: str, leave: str, view: str
) -> None:
    script = _inside(tmp_path, loader, evaluated, leave)
    wanted, found = execute(script), _run(script, view)
    assert not found.error, found.error
    assert "checked against one process" in found.said
    for result in found.results:
        assert_same_state(result["weights"], wanted["weights"], "weights")
        assert result["figures"] == pytest.approx(wanted["figures"], rel=1e-9)


def test_a_rest_that_depends_on_the_evaluation_is_refused_in_view_parts(tmp_path: Path) -> None:
    late = "sampler=RandomSampler(data, num_samples=44, generator=own)"
    script = _inside(tmp_path, late, "same generator", "pass")
    assert "run with --view whole" in _run(script, "parts").error
    (tmp_path / "run").rename(tmp_path / "first")
    wanted, found = execute(script), _run(script, "whole")
    assert not found.error, found.error
    for result in found.results:
        assert_same_state(result["weights"], wanted["weights"], "weights")
