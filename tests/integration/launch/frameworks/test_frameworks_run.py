"""Processes of other frameworks under the local launcher: real ones, of the standard library."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launch_support import Recorder, alive, make_job

from phalanx.core.errors import ScriptError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.frameworks.framework import Framework
from phalanx.launch.frameworks.seating import seat
from phalanx.launch.run import controller
from phalanx.launch.run.controller import RunOutcome, execute

TORCH = Framework(name="torch", system="torch")
SERVERS = Framework(name="tensorflow", system="tf-ps", python=sys.executable)
PRELUDE = """
import json, os, sys, time
from pathlib import Path

def keep(name, value):
    (Path(os.environ["PHALANX_RUN"]) / "files" / name).write_text(str(value))
"""


def run(
    folder: Path, body: str, framework: Framework, workers: int = 2
) -> tuple[RunOutcome, Recorder, RunPaths]:
    script = folder / "an unmodified script.py"
    script.write_text(PRELUDE + body)
    paths, seen = RunPaths(folder / "run").make(), Recorder()
    job = make_job(script, workers)
    job = replace(job, plan=seat(job.plan, framework, workers), framework=framework)
    return execute(job, paths, seen), seen, paths


def kept(paths: RunPaths, name: str) -> str:
    return (paths.files / name).read_text()


def test_a_torch_script_gets_its_variables_and_nothing_of_ours_is_asked_of_it(
    tmp_path: Path,
) -> None:
    outcome, seen, paths = run(
        tmp_path,
        """
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
keep("rank-" + os.environ["RANK"], json.dumps([os.environ[name] for name in names]))
keep("argv", sys.argv[1:])
assert "PHALANX_RANK" not in os.environ
if os.environ["RANK"] == "0":
    print("hello")
    print('phalanx-figures {"parameters": 12, "batch": 8, "samples": 40, "workers": 2}')
    print('phalanx-figures {"epoch": 0, "seconds": 2.0, "samples": 40, "test_loss": 0.5}')
""",
        TORCH,
    )
    assert (outcome.exit_code, outcome.summary.status) == (0, "done")
    first, second = (json.loads(kept(paths, f"rank-{rank}")) for rank in (0, 1))
    assert first[1:4] == second[1:4] and first[1:3] == ["2", "127.0.0.1"]
    assert (first[0], second[0], second[4]) == ("0", "1", "1")
    assert kept(paths, "argv") == "['--flag', 'two words']"
    assert seen.lines == [(0, "hello")], "figures are for the report, not for the terminal"
    summary = outcome.summary
    assert (summary.system, summary.workers, summary.parameters) == ("torch", 2, 12)
    assert (summary.epochs, summary.samples, summary.test_loss) == (1, 40, 0.5)
    assert summary.samples_per_second == 20.0
    assert summary.exit_codes == [0, 0] and summary.bytes_sent is None


def test_without_figures_what_is_known_is_told(tmp_path: Path) -> None:
    outcome, _, _ = run(tmp_path, "time.sleep(0.3)", TORCH)
    summary = outcome.summary
    assert summary.status == "done" and summary.exit_codes == [0, 0]
    assert summary.seconds is not None and summary.seconds > 0.2
    assert summary.machines[0].workers == 2
    assert summary.epochs is summary.samples is summary.samples_per_second is None
    assert summary.parameters is None
    assert "no metrics" in summary.notes[0]


def test_workers_and_servers_of_a_chief_are_ended_with_it(tmp_path: Path) -> None:
    outcome, _, paths = run(
        tmp_path,
        """
task = json.loads(os.environ["TF_CONFIG"])["task"]
keep(f"pid-{task['type']}-{task['index']}", os.getpid())
if task["type"] != "chief":
    time.sleep(600)
names = ["pid-worker-0", "pid-worker-1", "pid-ps-0"]
while not all((Path(os.environ["PHALANX_RUN"]) / "files" / name).exists() for name in names):
    time.sleep(0.01)
""",
        SERVERS,
    )
    assert (outcome.exit_code, outcome.summary.status) == (0, "done")
    assert outcome.summary.exit_codes[0] == 0 and len(outcome.summary.exit_codes) == 4
    assert outcome.summary.workers == 2, "a chief and a server do not compute"
    for name in ("worker-0", "worker-1", "ps-0"):
        assert not alive(int(kept(paths, f"pid-{name}")))


def test_one_failed_worker_ends_the_others_and_is_named_with_its_last_words(
    tmp_path: Path,
) -> None:
    outcome, seen, paths = run(
        tmp_path,
        """
keep("pid-" + os.environ["RANK"], os.getpid())
if os.environ["RANK"] == "1":
    while not (Path(os.environ["PHALANX_RUN"]) / "files" / "pid-0").exists():
        time.sleep(0.01)
    raise ValueError("boom")
time.sleep(600)
""",
        TORCH,
    )
    assert (outcome.exit_code, outcome.summary.status) == (1, "failed")
    assert isinstance(outcome.error, ScriptError)
    assert "worker 1 failed: ValueError: boom" in outcome.error.cause
    assert outcome.summary.exit_codes[1] == 1
    assert seen.failures[-1] == (1, "ValueError: boom")
    assert not alive(int(kept(paths, "pid-0")))


def test_a_worker_that_hangs_after_the_first_has_ended_well_gets_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_PATIENCE_FOR_STRAGGLERS", 0.3)
    outcome, seen, _ = run(tmp_path, "time.sleep(0 if os.environ['RANK'] == '0' else 600)", TORCH)
    assert (outcome.exit_code, outcome.summary.status) == (0, "done")
    assert any("stopped worker 1" in line for _, line in seen.lines)


def test_a_first_worker_that_hangs_after_all_others_ended_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_PATIENCE_FOR_FIRST", 0.3)
    outcome, _, _ = run(tmp_path, "time.sleep(600 if os.environ['RANK'] == '0' else 0)", TORCH)
    assert (outcome.exit_code, outcome.summary.status) == (1, "failed")
    assert outcome.error is not None and "worker 0 still ran" in outcome.error.cause


def test_a_single_process_is_not_the_last_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_PATIENCE_FOR_FIRST", 0.3)
    outcome, _, _ = run(tmp_path, "time.sleep(2)", TORCH, workers=1)
    assert (outcome.exit_code, outcome.summary.status) == (0, "done")


@pytest.mark.parametrize(("failing", "status"), [(1, "done"), (0, "failed")])
def test_a_mirrored_worker_may_fail_because_the_first_is_done(
    tmp_path: Path, failing: int, status: str
) -> None:
    mirrored = Framework(name="tensorflow", system="tf-mwms", python=sys.executable)
    outcome, _, _ = run(
        tmp_path,
        f"""
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
time.sleep(0.5 * index)
sys.exit(3 if index == {failing} else 0)
""",
        mirrored,
    )
    assert outcome.summary.status == status
    assert outcome.summary.exit_codes[failing] == 3
