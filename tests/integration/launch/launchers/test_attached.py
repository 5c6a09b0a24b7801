from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from launch_support import FIGURES, Recorder, alive, make_job, wait_until, write_script

from phalanx.agent.machine.sampling import FILE
from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import LAUNCHERS, Fleet, Job
from phalanx.launch.launchers.attached import take_over
from phalanx.launch.launchers.remote_run import NothingLeft
from phalanx.launch.launchers.ssh import SshLauncher
from phalanx.launch.machines.remote_files import MachineFile
from phalanx.launch.run import controller
from phalanx.observe.machines.monitor import SampleReader
from phalanx.observe.summary.run_records import read_record
from phalanx.observe.summary.summary import Summary
from phalanx.pool.machine import Machine


@pytest.fixture
def job(tmp_path: Path) -> Job:
    machine = Machine(name="here", host="here", folder=str(tmp_path / "there"))
    job = make_job(write_script(tmp_path, ""), 1, launcher="ssh")
    return replace(job, fleet=Fleet(machines=(machine,)))


def test_a_detached_run_of_which_nothing_is_left_is_lost(job: Job, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run-1").make()
    paths.detached.write_text("{}")
    saved = tmp_path / "there/runs/run-1/files/saved"
    saved.parent.mkdir(parents=True)
    saved.write_text("a result")
    home = told_at(1.0, paths)
    kept = [{**FIGURES, "time": 1.0 + number} for number in range(4)]
    (saved.parents[1] / FILE).write_text("".join(f"{json.dumps(each)}\n" for each in kept))
    outcome = take_over(job, paths, Recorder())
    assert isinstance(outcome.error, NothingLeft) and outcome.exit_code == 3
    assert outcome.summary.status == "lost" and not paths.detached.exists()
    written = read_record(paths.summary, Summary)
    assert written is not None and written.status == "lost"
    assert (paths.files / "saved").read_text() == "a result" and not saved.exists()
    samples = home.read_text().splitlines()
    moments = [(sample["at"], sample["time"]) for sample in map(json.loads, samples)]
    assert moments == [(1.0, 101.0), (2.0, 102.0), (3.0, 103.0), (4.0, 104.0)]


def told_at(moment: float, paths: RunPaths) -> Path:
    """The file of a machine's samples, with the only one that was heard of it."""
    sample = SampleReader().read({**FIGURES, "time": moment}, clock_offset=100.0)
    assert sample is not None
    MachineFile(paths.machine("here")).add(sample)
    return paths.machine("here")


def test_samples_whose_clock_nobody_knows_are_not_taken(job: Job, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run-1").make()
    there = tmp_path / "there/runs/run-1"
    there.mkdir(parents=True)
    (there / FILE).write_text(json.dumps({**FIGURES, "time": 5.0}) + "\n")
    take_over(job, paths, Recorder())
    assert not paths.machine("here").exists() and not there.exists()


def test_machines_are_left_when_the_run_cannot_be_written_down(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SshLauncher] = []

    def launcher() -> SshLauncher:
        opened.append(SshLauncher())
        return opened[-1]

    paths = RunPaths(tmp_path / "run-1").make()
    paths.launch.mkdir()  # no file can take this name
    monkeypatch.setattr(LAUNCHERS, "get", lambda name: launcher)
    with pytest.raises(MachineError, match="cannot write"):
        controller.execute(job, paths, Recorder())
    run = opened[0]._run
    assert run is not None and opened[0]._loop is None
    assert wait_until(lambda: not alive(run.members[0].link.hello["pid"]))
