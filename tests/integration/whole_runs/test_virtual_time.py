"""Training in virtual time: real gradients, and the time that a cluster would take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from commands import last_json, succeeds

from phalanx.core.errors import InputError, MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings, VirtualCluster, VirtualWorker
from phalanx.launch.launcher import Job
from phalanx.launch.run.controller import Observer, execute
from phalanx.observe.summary.summary import Summary
from phalanx.plan.plan import make_plan
from phalanx.policies.collective_choice import choose
from phalanx.policies.collective_cost import COSTS, LinkSpeed
from phalanx.pool.here import this_machine
from phalanx.sync.state.skip_dynamo_import import without_compiler
from phalanx.train.engine import virtual_work
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


@pytest.mark.parametrize("strategy", ["allreduce", "bsp", "localsgd:every=3"])
def test_what_steps_together_trains_bit_for_bit_as_processes_do(
    tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ended = succeeds(
        "run", str(script), "--workers", "3", "--seed", "3", "--json",
        "--strategy", f"{strategy}:shares=equal", cwd=tmp_path,
    )  # fmt: skip
    run = tmp_path / "runs" / last_json(ended.stdout)["run"]
    given = cluster(3, each=1e-3, bandwidth=1e6, latency=1e-3, variation=0.2, update=0.004)
    _, weights = train_virtually(tmp_path / "virtual", strategy, given)
    assert weights == (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("strategy", ["async", "dssp", "groups", "allreduce@0.5/ssp"])
def test_a_seed_repeats_exactly(tmp_path: Path, strategy: str) -> None:
    given = cluster(4, each=1e-3, bandwidth=1e6, latency=1e-3, variation=0.3, update=0.001)
    found = [
        train_virtually(tmp_path / str(number), strategy, given, slow=[1, 1, 1, 0.25], seed=seed)
        for number, seed in enumerate((3, 3, 4))
    ]
    (first, same), (again, weights), (other, _) = found
    assert weights == same
    assert (again.seconds, again.staleness) == (first.seconds, first.staleness)
    assert again.history == first.history
    assert other.seconds != first.seconds


def test_allreduce_takes_as_long_as_the_formulas_say(tmp_path: Path) -> None:
    given = cluster(4, fixed=0.01, each=2e-3, update=0.003, bandwidth=1e5, latency=1e-3)
    summary, _ = train_virtually(tmp_path / "run", "allreduce", given, slow=[1, 1, 1, 0.5])
    link = LinkSpeed(1e-3, 1e5)
    chosen = choose(None, 4, GRADIENT, link.latency)
    exchange = COSTS[f"all_reduce.{chosen}"](4, GRADIENT).seconds(link)
    step = (0.01 + 2e-3 * 6) / 0.5 + exchange + 0.003
    assert summary.seconds == pytest.approx(STEPS * step)
    assert summary.simulated
    assert summary.samples_per_second == pytest.approx(24 / step)
    assert summary.history[-1]["seconds"] == pytest.approx(STEPS * step)
    assert summary.time.update == pytest.approx(STEPS * 0.003)
    assert summary.resources.cpu_percent.avg is None


def test_a_worker_that_is_lost_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="worker 1 was lost at its step 5"):
        train_virtually(tmp_path / "run", "allreduce", cluster(3, failures={1: 5}))


@pytest.mark.parametrize("strategy", ["async", "ssp:bound=2"])
def test_the_others_go_on_without_a_lost_worker_where_they_do_not_wait(
    tmp_path: Path, strategy: str
) -> None:
    given = cluster(4, failures={2: 3}, variation=0.1, bandwidth=1e6)
    found = [train_virtually(tmp_path / name, strategy, given) for name in ("one", "two")]
    (summary, weights), (again, same) = found
    assert summary.status == "done"
    assert summary.epochs == 2
    assert [worker.steps for worker in summary.per_worker][2] == 2
    assert summary.samples == 480 - 6  # what it had in hand
    assert (again.seconds, same) == (summary.seconds, weights)


def test_the_evaluation_takes_its_time(tmp_path: Path) -> None:
    script = SCRIPT.replace("epochs=2", "test=(x, x[:, :3].argmax(1)), epochs=2")
    seconds = []
    for evaluate in (0.0, 3.0):
        given = cluster(3, evaluate=evaluate)
        summary, _ = train_virtually(tmp_path / str(evaluate), "allreduce", given, script=script)
        assert summary.seconds is not None
        seconds.append(summary.seconds)
    assert seconds[1] - seconds[0] == pytest.approx(2.0)  # two epochs, shared by three


def test_replicas_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_work, "available", lambda: 10_000)
    with pytest.raises(InputError, match="8 workers of this model take") as caught:
        train_virtually(tmp_path / "run", "allreduce", cluster(8))
    assert "at most 2 workers" in caught.value.remedy


def test_the_command_line_marks_every_figure(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ended = succeeds(
        "compare", str(script), "--simulate", "--workers", "3", "--rate", "1mbit", "--slow",
        "1,1,0.5", "--strategies", "allreduce,async", "--json", cwd=tmp_path,
    )  # fmt: skip
    study = last_json(ended.stdout)
    assert [run["simulated"] for run in study["runs"]] == [True] * 3
    report = (tmp_path / "runs" / study["study"] / "report.html").read_text()
    assert "allreduce (simulated)" in report
    assert "allreduce (simulated)" in ended.stderr
    assert "all times are virtual" in " ".join(ended.stderr.split())
