"""What must not outlast a run, and what must not be taken for one that is done."""

from __future__ import annotations

import os
import resource
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from commands import python
from launch_support import Recorder, alive, make_job, run, wait_until, write_script

from phalanx.agent import system
from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import Fleet
from phalanx.launch.run.controller import execute
from phalanx.launch.run.open_run_folder import append_to_log
from phalanx.pool.machine import Machine

DAEMON = """
import subprocess
join()
line = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
inner = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {line!r}]); "
words = [sys.executable, "-c", inner + "import time; time.sleep(0.2)"]
child = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
named = paths.files / f"daemon-{rank}"
named.with_suffix(".new").write_bytes(child.stdout.readline())
named.with_suffix(".new").rename(named)
until = time.monotonic() + 30  # one that fails ends the other: both have to be there before
while not (paths.files / f"daemon-{1 - rank}").exists() and time.monotonic() < until:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("ending", ["finish()", "raise ValueError"])
def test_what_called_setsid_does_not_outlast_the_run(tmp_path: Path, ending: str) -> None:
    before = system.children()
    _, _, paths = run(tmp_path, DAEMON + ending)
    for rank in (0, 1):
        pid = int((paths.files / f"daemon-{rank}").read_text())
        assert wait_until(lambda pid=pid: not alive(pid)), "a child of a worker lives on"  # type: ignore[misc]
    assert system.children() == before


def test_other_children_of_this_process_live_on(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            outcome, _, _ = run(tmp_path, "join()\nfinish()")
            assert outcome.exit_code == 0 and other.poll() is None
        finally:
            other.kill()


GONE = """
import shutil
join()
if rank == 0:
    time.sleep(1)  # until it is known that this worker has joined
    shutil.rmtree({what}, ignore_errors=True)
"""


@pytest.mark.parametrize(
    "what", ["paths.folder", "paths.events"], ids=["all of it", "events alone"]
)
def test_a_folder_removed_in_mid_run_is_a_failure(tmp_path: Path, what: str) -> None:
    outcome, _, _ = run(tmp_path, GONE.format(what=what), workers=1)
    assert outcome.summary.status == "failed" and outcome.exit_code == 3
    assert isinstance(outcome.error, MachineError)
    assert "was removed or replaced while it ran" in outcome.error.cause


@pytest.mark.slow  # where the plugin that spares workers torch does not travel
def test_a_run_by_agents_whose_folder_is_removed_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PHALANX_PLUGINS")
    machine = Machine(name="here", host="here", folder=str(tmp_path / "there"))
    home = tmp_path / "run"
    script = write_script(
        tmp_path, f"import shutil\njoin()\ntime.sleep(1)\nshutil.rmtree({str(home)!r})\n"
    )
    job = replace(make_job(script, 1, launcher="ssh"), fleet=Fleet(machines=(machine,)))
    outcome = execute(job, RunPaths(home).make(), Recorder())
    assert outcome.summary.status == "failed" and outcome.exit_code == 3


def test_last_words_are_never_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "profile"
    precious.write_text("mine\n")
    (tmp_path / "rank-0.log").symlink_to(precious)
    append_to_log(tmp_path / "rank-0.log", ["rm -rf /"])
    assert precious.read_text() == "mine\n"


def test_who_holds_a_key_leaves_no_core_dump() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        RunKey.new()
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.parametrize("launcher", ["local", pytest.param("ssh", marks=pytest.mark.slow)])
def test_commands_and_agents_leave_no_core_dumps_nor_do_their_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    if launcher == "ssh":
        monkeypatch.delenv("PHALANX_PLUGINS")
    here = tmp_path / "pool.yaml"
    here.write_text(f"machines: {{here: {{host: here, folder: {tmp_path / 'there'}}}}}\n")
    script = write_script(
        tmp_path,
        "import phalanx, resource\njoin()\nfinish()\nif False:\n    phalanx.join()\n"
        "print('core', resource.getrlimit(resource.RLIMIT_CORE)[0])\n",
    )
    words = ["run", str(script), "--launcher", launcher]
    words += ["--pool", str(here)] if launcher == "ssh" else []
    ended = python(
        "-m", "phalanx", *words,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)),
        env={**os.environ, "PHALANX_RUNS": str(tmp_path / "runs")},
    )  # fmt: skip
    assert "core 0\n" in ended.stdout, ended.stderr


WITHOUT = "import sys\nsys.modules[{name!r}] = None\n"
"""As if it were not installed."""


@pytest.mark.parametrize("name", ["msgspec", "typer", "ruamel"])
def test_a_missing_package_of_ours_is_one_line(tmp_path: Path, name: str) -> None:
    words = "sys.argv = ['phalanx', 'pool', 'check', 'pool.yaml', '--offline']\n"
    if name != "ruamel":
        words = "sys.argv = ['phalanx', 'runs']\n"
    code = WITHOUT.format(name=name) + words + "from phalanx.cli.entry import main\nmain()"
    (tmp_path / "pool.yaml").write_text("machines: {here: {host: here}}\n")
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/launch.json").write_text("{}")
    ended = python(
        "-c", code, cwd=tmp_path, env={**os.environ, "PHALANX_RUNS": str(tmp_path / "runs")}
    )
    shown = {"ruamel": "ruamel.yaml"}.get(name, name)
    assert ended.returncode == 3 and len(ended.stderr.splitlines()) == 2, ended.stderr
    assert f"needs the package '{shown}'" in ended.stderr
    assert f"-m pip install {shown}" in ended.stderr


@pytest.mark.parametrize("name", ["msgspec", "ruamel"])
def test_a_missing_package_in_a_worker_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The first is missed before the script begins, the other by what the script asks for."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WITHOUT.format(name=name))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ['PYTHONPATH']}")
    script = tmp_path / "train.py"
    script.write_text("" if name == "msgspec" else "import phalanx.pool.document\n")
    recorder = Recorder()
    outcome = execute(make_job(script, 1), RunPaths(tmp_path / "run").make(), recorder)
    assert outcome.exit_code == 3 and not recorder.failures
    assert outcome.error and f"Phalanx needs the package '{name}" in outcome.error.cause
    assert f"pip install {name}" in outcome.error.remedy


def test_a_missing_package_of_the_script_is_its_own_traceback(tmp_path: Path) -> None:
    outcome, recorder, _ = run(tmp_path, "import a_package_of_theirs", workers=1)
    assert outcome.exit_code == 1
    assert any("a_package_of_theirs" in line for _, line in recorder.failures)
