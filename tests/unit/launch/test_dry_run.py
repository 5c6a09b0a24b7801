"""A dry run prints what the real run starts, word for word; both come from the same code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from launch_support import Recorder, make_job, write_script

from phalanx.cli.output import Output
from phalanx.cli.request import dry_run
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import Fleet, Job, read_launch
from phalanx.launch.run import controller
from phalanx.launch.run.controller import execute
from phalanx.pool.machine import Machine


@pytest.fixture(autouse=True)
def _as_users_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_PLUGINS")  # which is not sent to machines


class Shown(Output):
    """What ``--json`` prints."""

    def result(self, value: dict[str, Any]) -> None:
        (self.launch,) = value["launches"]


def job_by(launcher: str, folder: Path) -> Job:
    job = make_job(write_script(folder, "join()\nfinish()"), 2, launcher)
    machine = Machine(name="here", host="here", folder=str(folder / "there"))
    return replace(job, fleet=Fleet(machines=(machine,), workers=2))


@pytest.mark.parametrize("launcher", ["local", "ssh"])
def test_it_is_what_the_record_of_the_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    written: list[str] = []
    keep = controller.write_launch
    monkeypatch.setattr(
        controller, "write_launch", lambda paths, text: (written.append(text), keep(paths, text))
    )
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "runs"))
    job, out = job_by(launcher, tmp_path), Shown(json=True)
    assert dry_run.show([("mine", job)], out) == 0
    assert not (tmp_path / "runs").exists() and not (tmp_path / "there/runs").exists()
    paths = RunPaths(tmp_path / "runs" / "TIME-mine").make()
    outcome = execute(job, paths, Recorder())
    assert outcome.exit_code == 0, outcome.error
    launch, plan = read_launch(paths)
    assert out.launch["workers"] == msgspec.to_builtins(launch.workers)
    assert out.launch["plan"] == msgspec.to_builtins(plan)
    assert len(launch.workers) == 2
    assert written == [paths.launch.read_text()], "once"


def test_no_password_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(question: str) -> str:
        raise AssertionError(question)

    monkeypatch.setattr("phalanx.launch.ssh.ssh_login.getpass", asked)
    far, store = (
        Machine.model_validate({"name": name, "host": host, "password": "prompt"})
        for name, host in (("far", "192.0.2.1"), ("store", "192.0.2.2"))
    )
    job = job_by("ssh", tmp_path)
    plan = msgspec.structs.replace(job.plan, strategy="async")
    fleet = Fleet(machines=(far, store), servers=("store",), workers=2)
    out = Shown(json=True)
    assert dry_run.show([("mine", replace(job, plan=plan, fleet=fleet))], out) == 0
    assert out.launch["workers"] == []
    assert out.launch["plan"]["workers"] == 2
    slots = {one["name"]: len(one["slots"]) for one in out.launch["plan"]["machines"]}
    assert slots == {"far": 2, "store": 1}, "with its parameter server"
