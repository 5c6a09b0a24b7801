"""Whole runs on a GPU: several workers on one, a CPU beside it, and the same results as on CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import last_json, phalanx
from safetensors.torch import load_file
from torch import Tensor

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.launch.launcher import Job
from phalanx.launch.run.controller import execute
from phalanx.launch.run.observer import Observer
from phalanx.observe.events.event_types import Joined, read_events
from phalanx.observe.summary.summary import Summary
from phalanx.plan.plan import Plan, PlannedMachine, Slot

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SCRIPT = """
import torch, phalanx
from torch import nn

train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                      nn.Linear(288, 10)).double()
optimizer = torch.optim.{optimizer}
phalanx.fit(model, optimizer=optimizer, loss=nn.functional.cross_entropy, epochs={epochs},
            train=(train[0].double(), train[1]), test=(test[0].double(), test[1]), batch=120,
            clip=5.0)
"""
SGD = "SGD(model.parameters(), lr=0.05, momentum=0.9)"
ADAM = "Adam(model.parameters(), lr=3e-3, fused=True)"
REPEATABLE = ["allreduce", "bsp", "localsgd:every=4", "diloco:every=4"]
FREE = [
    "async",
    "async:overlap=yes",
    "ssp:bound=2",
    "dssp",
    "groups:size=2",
    "switch:at=0.5",
    "allreduce+int8",
]
BLUEPRINT = "machines:\n  here: {{host: here, gpus: {gpus}}}\n"


def _script(folder: Path, optimizer: str = SGD, epochs: int = 2) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(optimizer=optimizer, epochs=epochs))
    return path


def _run(folder: Path, script: Path, strategy: str, workers: int, gpus: int) -> dict[str, Any]:
    """By the command line; its summary."""
    pool = folder / f"gpus-{gpus}.yaml"
    pool.write_text(BLUEPRINT.format(gpus=gpus))
    words = (
        "--strategy",
        f"{strategy}:shares=equal",
        "--workers",
        str(workers),
        "--pool",
        str(pool),
    )
    ended = phalanx("run", str(script), *words, "--json", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return last_json(ended.stdout)


def _placed(folder: Path, script: Path, strategy: str, devices: list[str]) -> Summary:
    """One worker on each of ``devices``."""
    slots = [Slot(rank=r, cpus=[], threads=2, device=d) for r, d in enumerate(devices)]
    machine = PlannedMachine(name="here", host="here", cores=None, gpus=1, slots=slots)
    plan = Plan(
        strategy=strategy,
        selection="all",
        machines=[machine],
        workers=len(devices),
        batch=None,
        predicted={"seconds": None},
        reasons=[],
    )
    chosen = RunSettings(strategy=strategy)
    job = Job(script, [], chosen, plan, "local", ["phalanx", "run", str(script)])
    paths = RunPaths(folder)
    paths.make()
    outcome = execute(job, paths, Observer())
    assert outcome.exit_code == 0, outcome.error
    return outcome.summary


def _devices(folder: Path, workers: int) -> list[str]:
    events = [list(read_events(RunPaths(folder).events_of(rank))) for rank in range(workers)]
    return [next(e.device for e in found if isinstance(e, Joined)) for found in events]


def _assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        difference = (found[name].double() - value.double()).norm()
        assert difference <= 1e-9 * max(1.0, float(value.double().norm())), name


@pytest.mark.parametrize("strategy", REPEATABLE)
def test_four_workers_on_one_gpu_end_where_four_on_cpus_end(tmp_path: Path, strategy: str) -> None:
    script, models = _script(tmp_path), {}
    for gpus in (0, 1):
        summary = _run(tmp_path, script, strategy, workers=4, gpus=gpus)
        folder = tmp_path / "runs" / summary["run"]
        models[gpus] = load_file(RunPaths(folder).model)
        assert _devices(folder, 4) == (["cuda:0"] * 4 if gpus else ["cpu"] * 4)
    _assert_same(models[1], models[0])


@pytest.mark.parametrize("strategy", FREE)
def test_workers_that_run_free_on_one_gpu_learn(tmp_path: Path, strategy: str) -> None:
    script = _script(tmp_path, epochs=12)
    summary = _run(tmp_path, script, strategy, workers=4, gpus=1)
    assert summary["test_accuracy"] >= 0.9
    assert summary["samples"] == 12 * 1500  # each sample once an epoch


@pytest.mark.parametrize("strategy", ["allreduce", "bsp", "localsgd:every=4"])
@pytest.mark.parametrize("devices", [["cuda:0", "cpu"], ["cpu", "cuda:0", "cuda:0"]])
def test_a_cpu_and_a_gpu_in_one_job_end_where_cpus_end(
    tmp_path: Path, strategy: str, devices: list[str]
) -> None:
    script = _script(tmp_path)
    models = []
    for name, places in (("mixed", devices), ("cpus", ["cpu"] * len(devices))):
        _placed(tmp_path / name, script, strategy, places)
        models.append(load_file(RunPaths(tmp_path / name).model))
        assert _devices(tmp_path / name, len(places)) == places
    _assert_same(*models)


@pytest.mark.parametrize("strategy", ["async", "ssp:bound=2", "switch:at=0.5"])
def test_a_cpu_and_a_gpu_that_run_free_learn(tmp_path: Path, strategy: str) -> None:
    summary = _placed(tmp_path, _script(tmp_path, epochs=12), strategy, ["cuda:0", "cpu"])
    assert summary.test_accuracy is not None and summary.test_accuracy >= 0.9


@pytest.mark.parametrize("strategy", ["allreduce", "async", "localsgd:every=4"])
def test_a_fused_optimizer_of_a_gpu_runs_in_every_kind_of_strategy(
    tmp_path: Path, strategy: str
) -> None:
    script = _script(tmp_path, ADAM, epochs=6)
    assert _run(tmp_path, script, strategy, workers=2, gpus=1)["test_accuracy"] >= 0.85
