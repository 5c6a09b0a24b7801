from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from launch_support import Recorder, alive, make_job, wait_until, write_script

from phalanx.core.errors import MachineError
from phalanx.core.run_paths import RunPaths
from phalanx.launch import controller
from phalanx.launch.attached import take_over
from phalanx.launch.launcher import LAUNCHERS, Fleet, Job
from phalanx.launch.remote_run import NobodyLeft
from phalanx.launch.ssh import SshLauncher
from phalanx.observe.records import read_record
from phalanx.observe.summary import Summary
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
    outcome = take_over(job, paths, Recorder())
    assert isinstance(outcome.error, NobodyLeft) and outcome.exit_code == 3
    assert outcome.summary.status == "lost" and not paths.detached.exists()
    written = read_record(paths.summary, Summary)
    assert written is not None and written.status == "lost"
    assert (paths.files / "saved").read_text() == "a result" and not saved.exists()


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
