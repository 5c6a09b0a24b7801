"""A run that is told to stop saves first, on the machine of the first worker, and goes on later
wherever there are machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import AWAY
from strategy_cases import is_lockstep
from training import Training, assert_identical

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.control.directives import Directive, Kind

STOP = Directive(Kind.STOP)
SPECS = ["allreduce", "async", "ssp:bound=3", "localsgd:every=2", "allreduce@0.5/async"]
WORKERS = 3  # of two hosts, two are on the first

pytestmark = pytest.mark.skipif(
    AWAY or ranks.HOSTS > 1, reason="goes from one host to two and back by itself"
)


def _training(
    monkeypatch: pytest.MonkeyPatch, folder: Path, spec: str, hosts: int, **options: Any
) -> Training:
    monkeypatch.setattr(ranks, "HOSTS", hosts)
    monkeypatch.setattr(ranks, "places", lambda: None)
    return Training(folder, spec, **{"workers": WORKERS, **options}).run()


def _after(before: Training) -> dict[str, Any]:
    """What the rest is trained with."""
    path, _ = before.checkpoint()
    return {"settings": {"resume": str(path)}}


@pytest.mark.parametrize(
    ("spec", "first", "then"),
    [*((spec, 2, 2) for spec in SPECS), ("allreduce", 1, 2), ("async", 2, 1)],
)
def test_a_stopped_run_goes_on_with_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, first: int, then: int
) -> None:
    stopped = _training(monkeypatch, tmp_path / "stopped", spec, first, commands={3: STOP})
    assert sorted(stopped.stopped) == list(range(WORKERS)), "all end, and none as lost"
    assert 0 < sum(stopped.before_save) == stopped.counts().total() < stopped.samples
    rest = _training(monkeypatch, tmp_path / "rest", spec, then, **_after(stopped))
    assert rest.counts() + stopped.counts() == stopped.once()
    if not is_lockstep(spec):
        return
    unbroken = _training(monkeypatch, tmp_path / "unbroken", spec, then)
    for name, value in unbroken.state().items():
        assert torch.allclose(rest.state()[name], value, rtol=0, atol=1e-5), name
    if first == then:
        assert_identical(rest.state(), unbroken.state())


@pytest.mark.parametrize("spec", ["async", "ssp:bound=3", "groups:size=2", "async@0.5/allreduce"])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("at", [1, pytest.param(3, marks=pytest.mark.slow), 9])
def test_workers_that_count_their_batches_stop_after_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, hosts: int, at: int
) -> None:
    options = {"counted": True, "epochs": 3, "batch": 9}
    stopped = _training(
        monkeypatch, tmp_path / "stopped", spec, hosts, commands={at: STOP}, **options
    )
    assert sorted(stopped.stopped) == list(range(WORKERS)), "all end, and none as lost"
    assert 0 < sum(stopped.before_save) == stopped.counts().total() < 3 * stopped.samples
    rest = _training(monkeypatch, tmp_path / "rest", spec, hosts, **options, **_after(stopped))
    assert rest.counts() + stopped.counts() == stopped.once()


def test_parts_of_other_machines_lie_with_the_first_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = {"checkpoint_epochs": 1}
    saved = _training(monkeypatch, tmp_path, "localsgd:every=2", 2, settings=each)
    path, manifest, _ = shelf.newest_valid(RunPaths(saved.folder).checkpoints)
    assert manifest.files.keys() == {p.name for p in path.iterdir()} - {"manifest.json"}
    assert len(manifest.files) == 1 + WORKERS
    elsewhere = ranks.folder_on(tmp_path, 1)
    assert not list(RunPaths(elsewhere).checkpoints.glob("*"))
    assert not list(elsewhere.glob("*.safetensors"))


@pytest.mark.parametrize("workers", [2, 4])
def test_another_number_of_workers_on_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    stopped = _training(monkeypatch, tmp_path / "stopped", "allreduce", 2, commands={3: STOP})
    options = {"workers": workers, "look": True, **_after(stopped)}
    rest = _training(monkeypatch, tmp_path / "rest", "async", 2, **options)
    _, state = stopped.checkpoint()
    for name, value in rest.captured[0].shared.items():
        assert name not in state or torch.equal(value, state[name]), name
    assert rest.counts() + stopped.counts() == stopped.once()
