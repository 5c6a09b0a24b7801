from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launch_support import make_job, run, start_without_torch

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.launch.launchers.local import LocalLauncher


def test_the_users_number_of_threads_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for workers in (1, 2):
        job = make_job(tmp_path / "train.py", workers)
        for worker in LocalLauncher().prepare(job, RunPaths(tmp_path / "run")).workers:
            assert worker.threads == 7
            assert worker.env["OMP_NUM_THREADS"] == worker.env["MKL_NUM_THREADS"] == "7"
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    (worker,) = LocalLauncher().prepare(job, RunPaths(tmp_path / "run")).workers[:1]
    assert worker.env["OMP_NUM_THREADS"] == "1", "what is no number is the plan's"


def test_the_dry_run_says_what_would_start_and_touches_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path / "train.py", 2)
    paths = RunPaths(tmp_path / "run")
    launch = LocalLauncher().prepare(job, paths)
    assert not paths.folder.exists()
    assert [worker.rank for worker in launch.workers] == [0, 1]
    first, second = launch.workers
    assert first.argv[1:] == [
        "-P", "-m", "phalanx.launch.worker.bootstrap", str(job.script), "--flag", "two words",
    ]  # fmt: skip
    assert first.argv == second.argv
    assert second.env["PHALANX_RANK"] == "1" and second.env["PHALANX_WORKERS"] == "2"
    assert second.env["PHALANX_MACHINE"] == "here" and second.env["PHALANX_DEVICE"] == "cpu"
    assert Path(second.env["PHALANX_RUN"]).is_absolute()
    assert RunSettings.from_json(second.env["PHALANX_SETTINGS"]) == job.settings
    assert second.env["OMP_NUM_THREADS"] == second.env["MKL_NUM_THREADS"] == "1"
    assert "PATH" not in second.env
    assert {"python", "torch", "numpy"} <= set(launch.versions)


def test_remote_machines_and_too_many_workers_are_refused(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    with pytest.raises(InputError, match="this machine only"):
        LocalLauncher().prepare(make_job(tmp_path / "s.py", 1, host="192.0.2.1"), paths)
    with pytest.raises(InputError, match="--workers 64 or fewer"):
        LocalLauncher().prepare(make_job(tmp_path / "s.py", 65), paths)


def test_workers_share_one_memory_that_only_they_have(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    outcome, _, paths = run(
        tmp_path,
        """
import json
join()
fd = int(os.environ["PHALANX_ARENA"])
status = os.fstat(fd)
seen = {"inode": status.st_ino, "links": status.st_nlink, "group": os.getpgid(0) == os.getpid(),
        "session": os.getsid(0) == os.getpid(), "started": float(os.environ["PHALANX_STARTED"]),
        "now": time.monotonic(), "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN}
(paths.files / f"seen-{rank}").write_text(json.dumps(seen))
finish()
""",
    )
    assert outcome.exit_code == 0
    first, second = (json.loads((paths.files / f"seen-{r}").read_text()) for r in (0, 1))
    assert first["inode"] == second["inode"] and first["links"] == 0
    assert all(s["group"] and s["session"] and s["sigint"] for s in (first, second))
    assert all(s["started"] < s["now"] for s in (first, second))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_one_worker_needs_no_shared_memory(tmp_path: Path) -> None:
    outcome, seen, _ = run(
        tmp_path, "join(); print('PHALANX_ARENA' in os.environ); finish()", workers=1
    )
    assert outcome.exit_code == 0 and seen.lines == [(0, "False")]


def test_stop_before_start_is_harmless() -> None:
    launcher = LocalLauncher()
    launcher.stop(1.0)
    assert launcher.poll() == {} and launcher.processes() == []


PLUGIN = """
import msgspec
from phalanx.launch.launcher import LAUNCHERS
from phalanx.launch.launchers.local import LocalLauncher

class NiceLauncher(LocalLauncher):
    def prepare(self, job, paths):
        launch = super().prepare(job, paths)
        replace = msgspec.structs.replace
        nice = [replace(w, argv=["nice", "-n", "5", *w.argv]) for w in launch.workers]
        return msgspec.structs.replace(launch, workers=nice)

LAUNCHERS.add("nice", "nice_launcher:NiceLauncher")
"""


def test_a_launcher_from_outside_runs_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one new file and one registry line."""
    (tmp_path / "nice_launcher.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    start_without_torch(monkeypatch, "nice_launcher")
    body = "join(); print('niceness', os.nice(0)); finish()"
    outcome, seen, _ = run(tmp_path, body, workers=1, launcher="nice")
    assert outcome.exit_code == 0, outcome.error
    assert seen.launches[0].launcher == "nice"
    niceness = int(seen.lines[0][1].split()[1])
    assert niceness >= 5
