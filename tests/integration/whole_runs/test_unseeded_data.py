"""Data that a script makes or splits without a seed are the same on all workers of a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from commands import last_json, succeeds

SCRIPT = """
import json, random
import numpy as np, torch, phalanx
from torch import nn
from torch.utils.data import TensorDataset, random_split

names = [f"file {i}" for i in {str(i) for i in range(60)}]   # the order of a set
random.shuffle(names)                                        # a shuffled list of files
numbers = torch.tensor([int(name.split()[1]) for name in names])
x = torch.randn(60, 4) + torch.from_numpy(np.random.rand(60, 4)).float()   # a made data set
train, held = random_split(TensorDataset(x, numbers), [40, 20])            # an unseeded split

for training in range(2):
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    drawn, seen = torch.rand(1).item(), []
    for epoch in run.epochs(2):
        for x, numbers in run.batches(train, batch=8):
            seen += [[epoch, int(n)] for n in numbers]
            run.backward(model(x).mean())
            run.step()
        run.evaluate(lambda outputs, y: outputs.mean(), held)
    found = {"seen": seen, "held": [int(n) for _, n in held], "drawn": drawn}
    (run.folder / f"{training}-{run.rank}.json").write_text(json.dumps(found))
    # The second training makes its own: the workers share one stream again.
    train, held = random_split(TensorDataset(torch.randn(60, 4), torch.randperm(60)), [40, 20])
"""


@pytest.mark.parametrize(
    ("strategy", "launcher"),
    [
        ("allreduce", "local"),
        pytest.param("allreduce", "inprocess", marks=pytest.mark.slow),
        pytest.param("async", "local", marks=pytest.mark.slow),
        pytest.param("async", "inprocess", marks=pytest.mark.slow),
        pytest.param("localsgd:every=2", "local", marks=pytest.mark.slow),
    ],
)
def test_each_sample_once_and_none_of_those_held_out(
    tmp_path: Path, strategy: str, launcher: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = succeeds(
        "run", "train.py", "--workers", "2", "--strategy", strategy, "--launcher", launcher,
        "--json", cwd=tmp_path,
    )  # fmt: skip
    files = tmp_path / "runs" / last_json(ended.stdout)["run"] / "files"
    for training in range(2):
        found = [json.loads((files / f"{training}-{rank}.json").read_text()) for rank in range(2)]
        assert found[0]["held"] == found[1]["held"]
        counts = Counter((e, n) for worker in found for e, n in worker["seen"])
        trained = set(range(60)) - set(found[0]["held"])
        assert counts == Counter({(e, n): 1 for e in range(2) for n in trained})
        assert found[0]["drawn"] != found[1]["drawn"]  # dropout differs from worker to worker
