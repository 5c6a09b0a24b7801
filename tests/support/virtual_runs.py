"""Trains a small model on a cluster that is not there, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings, VirtualCluster, VirtualWorker
from phalanx.launch.launcher import Job
from phalanx.launch.run.controller import Observer, execute
from phalanx.observe.summary.summary import Summary
from phalanx.plan.plan import make_plan
from phalanx.pool.here import this_machine
from phalanx.sync.state.skip_dynamo_import import without_compiler
from phalanx.train.start.seed import seed_this_worker

SCRIPT = """
import torch, phalanx
from torch import nn

x = torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
phalanx.fit(model, optimizer=optimizer, loss=nn.CrossEntropyLoss(), train=(x, x[:, :3].argmax(1)),
            epochs=2, batch=24)
"""
GRADIENT = 4 * (8 * 16 + 16 + 16 * 3 + 3)
STEPS = 20
"""Of both epochs."""


def cluster(workers: int, **fields: Any) -> VirtualCluster:
    names = ("variation", "latency", "servers", "failures")
    own = {"fixed": 0.01, "each": 0.0, **{k: v for k, v in fields.items() if k not in names}}
    common = {k: v for k, v in fields.items() if k in names}
    return VirtualCluster(workers=[VirtualWorker(**own)] * workers, **common)


def _start(**_: object) -> None:
    """As workers do; tests without torch may have taken these steps out of this process."""
    without_compiler()
    seed_this_worker()


def train_virtually(
    folder: Path,
    strategy: str,
    given: VirtualCluster,
    *,
    slow: Sequence[float] = (),
    seed: int = 3,
    script: str = SCRIPT,
) -> tuple[Summary, bytes]:
    """What it came to, and the weights."""
    folder.mkdir(parents=True)
    path = folder / "train.py"
    path.write_text(script)
    machines, workers = this_machine().machines, len(given.workers)
    settings = RunSettings(strategy=strategy, seed=seed, virtual=given, slow=list(slow) or None)
    plan = make_plan(machines, workers=workers, strategy=strategy, selection="all", batch=None)
    job = Job(
        script=path, arguments=[], settings=settings, plan=plan, launcher="inprocess", command=[]
    )
    paths = RunPaths(folder / "run")
    paths.make()
    with mock.patch("phalanx.launch.launchers.inprocess.run_startup", _start):
        outcome = execute(job, paths, Observer())
    if outcome.error:
        raise outcome.error
    return outcome.summary, (paths.folder / "model.safetensors").read_bytes()
