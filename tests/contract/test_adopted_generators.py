"""A loader with a generator of its own is evaluated on in the middle of a pass over it: what it
gives then, and in later passes, is what plain Python gets, in both views."""

from __future__ import annotations

from pathlib import Path

import pytest
from adopted_runs import execute
from devices import AWAY
from forked_workers import ForkedRun, run_forked
from on_hosts import HOSTS
from plain_compare import assert_same_state

pytestmark = pytest.mark.skipif(AWAY or HOSTS > 1, reason="workers are forks of this process")


SCRIPT = """
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


def written(folder: Path, loader: str, evaluated: str, leave: str) -> Path:
    path, text = folder / "train.py", SCRIPT.replace("EVALUATED", EVALUATED[evaluated])
    path.write_text(text.replace("LOADER", loader).replace("LEAVE", leave), encoding="utf-8")
    return path


def _run(script: Path, view: str) -> ForkedRun:
    folder = script.parent / "run"
    return run_forked(script, 2, folder, strategy="allreduce", view=view, check=12)


@pytest.mark.parametrize("view", ["parts", "whole"])
@pytest.mark.parametrize("leave", ["pass", "if step == 3: break"])
@pytest.mark.parametrize("loader", [OWN, "shuffle=True"])
@pytest.mark.parametrize("evaluated", EVALUATED)
def test_evaluated_inside_a_pass(
    tmp_path: Path, evaluated: str, loader: str, leave: str, view: str
) -> None:
    script = written(tmp_path, loader, evaluated, leave)
    wanted, found = execute(script), _run(script, view)
    assert not found.error, found.error
    assert "checked against one process" in found.said
    for result in found.results:
        assert_same_state(result["weights"], wanted["weights"], "weights")
        assert result["figures"] == pytest.approx(wanted["figures"], rel=1e-9)


def test_a_rest_that_depends_on_the_evaluation_is_refused_in_view_parts(tmp_path: Path) -> None:
    late = "sampler=RandomSampler(data, num_samples=44, generator=own)"
    script = written(tmp_path, late, "same generator", "pass")
    assert "run with --view whole" in _run(script, "parts").error
    (tmp_path / "run").rename(tmp_path / "first")
    wanted, found = execute(script), _run(script, "whole")
    assert not found.error, found.error
    for result in found.results:
        assert_same_state(result["weights"], wanted["weights"], "weights")
