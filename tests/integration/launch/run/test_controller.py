from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launch_support import Recorder, alive, make_job, run, wait_until, write_script

from phalanx.core.errors import InputError, ScriptError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import Launch
from phalanx.launch.run import controller
from phalanx.launch.run.controller import execute
from phalanx.observe.events.event_types import Finished, Joined
from phalanx.observe.summary.run_lock import controller_of


def test_a_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    outcome, seen, paths = run(
        tmp_path,
        """
join()
print("I am", rank, os.environ["SOME_SECRET"], sys.argv[1:])
time.sleep(0.5)
finish()
print("no newline", end="")
""",
    )
    assert (outcome.exit_code, outcome.error, outcome.summary.status) == (0, None, "done")
    assert seen.lines == [
        (0, "I am 0 hunter2 ['--flag', 'two words']"),
        (0, "no newline"),
    ]
    assert "I am 1 hunter2" in paths.log_of(1).read_text()
    assert sorted(e.rank for e in seen.events if isinstance(e, Joined)) == [0, 1]
    assert sorted(e.rank for e in seen.events if isinstance(e, Finished)) == [0, 1]
    first = json.loads(paths.machine("here").read_bytes().splitlines()[0])
    assert first["workers_memory_bytes"] > 0
    assert not paths.controller.exists()
    summary = json.loads(paths.summary.read_text())
    assert summary["status"] == "done" and summary["exit_codes"] == [0, 0]
    assert seen.summaries == [outcome.summary]
    assert "hunter2" not in paths.launch.read_text()
    launch = Launch.from_json(paths.launch.read_text())
    assert launch == seen.launches[0] and len(launch.workers) == 2
    assert json.loads(paths.plan.read_text())["workers"] == 2


def test_a_script_that_raises_is_told_once_without_our_frames(tmp_path: Path) -> None:
    outcome, seen, paths = run(
        tmp_path,
        """
join()
def deeper():
    raise ValueError("boom")
if rank == 1:
    deeper()
time.sleep(60)
""",
    )
    assert outcome.exit_code == 1 and outcome.summary.status == "failed"
    assert isinstance(outcome.error, ScriptError)
    assert "worker 1" in outcome.error.cause and str(paths.log_of(1)) in outcome.error.cause
    assert "ValueError: boom" in outcome.error.cause
    assert {rank for rank, _ in seen.failures} == {1} and seen.lines == []
    told = [line for _, line in seen.failures]
    assert told[0].startswith("Traceback") and told[-1] == "ValueError: boom"
    files = [line for line in told if line.lstrip().startswith("File ")]
    assert len(files) == 2 and all("train.py" in line for line in files)
    assert paths.log_of(1).read_text().count("ValueError: boom") == 1
    assert outcome.summary.exit_codes[1] == 1 and outcome.summary.exit_codes[0] != 0


def test_every_rank_raising_is_still_told_once(tmp_path: Path) -> None:
    outcome, seen, _ = run(tmp_path, "raise RuntimeError('same bug')")
    assert outcome.exit_code == 1
    assert [line for _, line in seen.failures].count("RuntimeError: same bug") == 1


def test_a_killed_worker_ends_the_run_and_the_others(tmp_path: Path) -> None:
    outcome, _, paths = run(
        tmp_path,
        """
join()
if rank == 1:
    while not (paths.files / "pid-0").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
""",
    )
    assert outcome.exit_code == 1 and outcome.error is not None
    assert "worker 1 was killed by SIGKILL" in outcome.error.cause
    assert str(paths.log_of(1)) in outcome.error.cause
    assert outcome.summary.exit_codes[1] == -9
    pids = [int((paths.files / f"pid-{rank}").read_text()) for rank in (0, 1)]
    assert not any(alive(pid) for pid in pids)
    assert not paths.controller.exists() and paths.summary.exists()


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("sys.exit(3)", 3, "worker 0 exited with code 3"),
        ("sys.exit('no data')", 1, "worker 0 failed: no data"),
        (
            "import argparse; argparse.ArgumentParser().parse_args(['--no'])",
            2,
            "exited with code 2",
        ),
        ("def broken(:", 1, "SyntaxError"),
    ],
)
def test_other_endings(tmp_path: Path, ending: str, code: int, words: str) -> None:
    outcome, _, _ = run(tmp_path, f"join()\n{ending}", workers=1)
    assert outcome.exit_code == 1 and outcome.error is not None
    assert words in outcome.error.cause
    assert outcome.summary.exit_codes == [code]


def test_wrong_input_found_by_a_worker_exits_2_without_traceback(tmp_path: Path) -> None:
    outcome, seen, _ = run(
        tmp_path,
        """
from phalanx.core.errors import InputError
print("before")
raise InputError("more workers than samples", "Use fewer workers.")
""",
        workers=1,  # of two the first to fail may end the other before it has printed
    )
    assert outcome.exit_code == 2 and isinstance(outcome.error, InputError)
    assert outcome.error.cause == "more workers than samples"
    assert outcome.error.remedy == "Use fewer workers."
    assert seen.lines == [(0, "before")]


def test_a_script_that_never_joins(tmp_path: Path) -> None:
    outcome, _, _ = run(tmp_path, "print('alone')")
    assert outcome.exit_code == 2 and isinstance(outcome.error, InputError)
    assert "never called phalanx.fit or phalanx.join" in outcome.error.cause
    assert outcome.summary.status == "failed"


def test_the_cause_is_named_not_the_worker_that_missed_it(tmp_path: Path) -> None:
    outcome, _, _ = run(
        tmp_path,
        """
from phalanx.core.errors import PeerLost
join()
if rank == 0:
    raise PeerLost("another worker is gone")
time.sleep(0.3)
os._exit(9)
""",
    )
    assert outcome.error is not None
    assert "worker 1 exited with code 9" in outcome.error.cause


def test_a_worker_that_leaves_in_the_middle_does_not_hang_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_PATIENCE_FOR_EARLY", 0.3)
    outcome, _, paths = run(
        tmp_path,
        """
join()
if rank == 1:
    finish("failed")
    sys.exit(0)
time.sleep(60)
""",
    )
    assert outcome.exit_code == 1 and outcome.error is not None
    assert "worker 1 ended before the training was finished" in outcome.error.cause
    assert not alive(int((paths.files / "pid-0").read_text()))


def test_stragglers_are_stopped_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_PATIENCE_FOR_STRAGGLERS", 0.3)
    outcome, seen, paths = run(
        tmp_path,
        """
join()
finish()
if rank == 1:
    time.sleep(60)
while not (paths.files / "pid-1").exists():
    time.sleep(0.01)
""",
    )
    assert outcome.exit_code == 0 and outcome.summary.status == "done"
    assert any("stopped worker 1" in line for _, line in seen.lines)
    assert not alive(int((paths.files / "pid-1").read_text()))


def test_an_observer_that_fails_leaves_no_process(tmp_path: Path) -> None:
    class Broken(Recorder):
        def output(self, rank: int, line: str) -> None:
            raise BrokenPipeError

    paths = RunPaths(tmp_path / "run").make()
    script = write_script(tmp_path, "join()\nprint('hello')\ntime.sleep(60)")
    with pytest.raises(BrokenPipeError):
        execute(make_job(script, 1), paths, Broken())
    assert not alive(int((paths.files / "pid-0").read_text()))
    assert json.loads(paths.summary.read_text())["status"] == "failed"
    assert not paths.controller.exists()


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    outcome, _, paths = run(
        tmp_path,
        """
import subprocess
join()
child = subprocess.Popen(["sleep", "60"])
(paths.files / "child").write_text(str(child.pid))
finish()
""",
        workers=1,
    )
    assert outcome.exit_code == 0
    child = int((paths.files / "child").read_text())
    assert wait_until(lambda: not alive(child))


def test_the_script_and_its_modules_are_kept_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "model.py").write_text("NAME = 'model'\n")
    (tmp_path / "unrelated.py").write_text("")
    outcome, _, paths = run(tmp_path, "from parts import model\njoin()\nfinish()\n", workers=1)

    assert outcome.exit_code == 0
    kept = {str(f.relative_to(paths.source)) for f in paths.source.rglob("*") if f.is_file()}
    assert kept == {"train.py", "parts/__init__.py", "parts/model.py"}
    script = tmp_path / "train.py"
    assert (paths.source / "train.py").read_bytes() == script.read_bytes()


def test_the_controller_holds_its_run_while_it_runs(tmp_path: Path) -> None:
    class Looker(Recorder):
        seen: int | None = None

        def started(self, launch: Launch) -> None:
            process = controller_of(RunPaths(tmp_path / "run"))
            self.seen = process.pid if process else None

    paths, looker = RunPaths(tmp_path / "run").make(), Looker()
    execute(make_job(write_script(tmp_path, "join()\nfinish()"), 1), paths, looker)
    assert looker.seen == os.getpid()
    assert controller_of(paths) is None
    assert not [f.name for f in paths.folder.iterdir() if f.name.startswith(".")]


def test_an_unknown_launcher_is_refused_before_anything_starts(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run").make()
    job = make_job(write_script(tmp_path, ""), 1, launcher="lokal")
    with pytest.raises(InputError, match="Did you mean 'local'"):
        execute(job, paths, Recorder())
    assert not paths.launch.exists()
