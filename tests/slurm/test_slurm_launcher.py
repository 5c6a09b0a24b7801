"""``--launcher slurm`` on a real Slurm of one node: the same weights, stopped, started again."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from commands import PHALANX, phalanx, succeeds, until
from own_slurm import OwnSlurm
from seat_launcher_contract import (
    LIMIT,
    SCRIPT,
    background,
    checkpoints,
    files_of,
    run_of,
    summary_of,
    workers,
)
from seat_launcher_contract import words as common_words
from trained import assert_same_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def words(epochs: int, pause: float, launcher: str = "slurm", *more: str) -> list[str]:
    return common_words(epochs, pause, "--launcher", launcher, "--workers", "2", *more)


def test_ends_like_a_local_run_and_leaves_as_much(slurm: OwnSlurm, tmp_path: Path) -> None:
    here = tmp_path / "with space"
    here.mkdir()
    succeeds(*words(2, 0.01), cwd=here, limit=LIMIT, **slurm.variables)
    (tmp_path / "local").mkdir()
    succeeds(*words(2, 0.01, "local"), cwd=tmp_path / "local", OMP_NUM_THREADS="1")
    found, expected = run_of(here), run_of(tmp_path / "local")
    assert_same_model(found, expected)
    assert files_of(expected) - files_of(found) == {"machines/here.jsonl"}
    assert len(list((found / "machines").glob("*.jsonl"))) == 1
    summary, other = summary_of(found), summary_of(expected)
    assert summary["status"] == "done"
    assert summary["exit_codes"] == [0, 0]
    missing = {key for key, value in other.items() if value and not summary.get(key)}
    # Of workers that may be on several machines, what stays on one of them is not counted.
    assert missing <= {"bytes_per_step", "bytes_sent"}
    assert not slurm.jobs()


def test_the_key_is_nowhere_that_others_can_read(slurm: OwnSlurm, tmp_path: Path) -> None:
    process = background(tmp_path, words(30, 0.1), slurm.variables)
    until(lambda: bool(checkpoints(tmp_path)), 90.0)
    folder = run_of(tmp_path)
    key = (folder / "cluster" / "run.key").read_text()
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (folder / "cluster", folder / "cluster" / "run.key", folder / "cluster/job.sh")
    }
    assert modes == {"cluster": 0o700, "run.key": 0o600, "job.sh": 0o600}
    assert key not in (folder / "cluster" / "job.sh").read_text()
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(key.encode() in line for line in lines)
    assert key not in slurm.ask("scontrol", "show", "job", slurm.jobs()[0])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert not (folder / "cluster" / "run.key").exists()


def test_ctrl_c_stops_in_order_and_ends_the_job(slurm: OwnSlurm, tmp_path: Path) -> None:
    process = background(tmp_path, words(200, 0.1), slurm.variables)
    until(lambda: bool(checkpoints(tmp_path)), 90.0)
    (before,) = checkpoints(tmp_path)[-1:]
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 130, said
    summary = summary_of(run_of(tmp_path))
    assert summary["status"] == "stopped"
    assert summary["exit_codes"] == [143, 143]
    assert checkpoints(tmp_path)[-1] > before, "a checkpoint is written at the end"
    assert not slurm.jobs()
    until(lambda: not workers(tmp_path), 10.0)


def test_a_job_that_waits_is_cancelled_at_once(slurm: OwnSlurm, tmp_path: Path) -> None:
    given = words(2, 0.1, "slurm:begin=now+1hour")
    process = background(tmp_path, given, slurm.variables)
    until(lambda: bool(slurm.jobs()), 60.0)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 130, said
    assert not slurm.jobs()


def test_a_requeued_job_goes_on_from_its_checkpoint(slurm: OwnSlurm, tmp_path: Path) -> None:
    process = background(tmp_path, words(8, 0.15), slurm.variables)
    until(lambda: len(checkpoints(tmp_path)) >= 2, 90.0)
    (number,) = slurm.jobs()
    slurm.ask("scontrol", "requeue", number)
    folder = run_of(tmp_path)
    until(lambda: (folder / "cluster" / "meeting-1.json").exists(), 150.0)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    meeting = json.loads((folder / "cluster" / "meeting-1.json").read_text())
    assert Path(meeting["resume"]).parent == folder / "checkpoints"
    summary = summary_of(folder)
    assert summary["status"] == "done"
    before = folder.with_name(f".{folder.name}-before-1")
    assert len(list(before.glob("events/rank-*.jsonl"))) == 2
    assert summary_of(before)["status"] == "stopped"
    assert str(summary["resumes"]).startswith(f"{before.name}, checkpoint ")
    (tmp_path / "local").mkdir()
    succeeds(*words(8, 0.0, "local"), cwd=tmp_path / "local", OMP_NUM_THREADS="1")
    expected = run_of(tmp_path / "local")
    assert_same_model(folder, expected)
    losses = [
        [row["test_loss"] for row in summary_of(run)["history"]] for run in (folder, expected)
    ]
    assert losses[0] == pytest.approx(losses[1])
    assert len(losses[0]) == 8


def test_a_time_limit_stops_in_order_and_the_rest_is_resumed(
    slurm: OwnSlurm, tmp_path: Path
) -> None:
    given = words(70, 0.1, "slurm:time=1")
    ended = phalanx(*given, cwd=tmp_path, limit=LIMIT, **slurm.variables)
    assert ended.returncode == 3, ended.stderr
    assert "at its time limit" in ended.stderr
    first = run_of(tmp_path)
    assert summary_of(first)["exit_codes"] == [143, 143]
    more = ["resume", first.name, "--launcher", "slurm:time=5"]
    ended = phalanx(*more, cwd=tmp_path, limit=LIMIT, **slurm.variables)
    assert ended.returncode == 0, ended.stderr
    (second,) = (tmp_path / "runs").glob("*-resumed")
    assert "#SBATCH --time=5\n" in (second / "cluster" / "job.sh").read_text()
    assert len(summary_of(second)["history"]) == 70


def test_dry_run_prints_what_is_submitted(slurm: OwnSlurm, tmp_path: Path) -> None:
    launcher = "slurm:partition=debug,time=5,comment=two words"
    dry = succeeds(*words(1, 0.0, launcher, "--dry-run"), cwd=tmp_path, **slurm.variables)
    assert not (tmp_path / "runs").exists()
    succeeds(*words(1, 0.0, launcher), cwd=tmp_path, limit=LIMIT, **slurm.variables)
    folder = run_of(tmp_path)
    moment = folder.name.removesuffix("-slow_script-allreduce-shares-equal")
    submitted = (folder / "cluster" / "job.sh").read_text()
    assert submitted.replace(moment, "TIME") in dry.stdout


def test_a_worker_that_fails_is_named(slurm: OwnSlurm, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(SCRIPT.read_text().replace("epochs, pause =", "assert 0, 'no luck'\n    x ="))
    script.with_name("small_model.py").write_text(SCRIPT.with_name("small_model.py").read_text())
    given = ["run", str(script), "--launcher", "slurm", "--workers", "2"]
    ended = phalanx(*given, cwd=tmp_path, limit=LIMIT, **slurm.variables)
    assert ended.returncode == 1
    assert "failed: AssertionError: no luck" in ended.stderr
    assert not slurm.jobs()


def test_a_folder_that_nodes_do_not_see_is_named(slurm: OwnSlurm, tmp_path: Path) -> None:
    """Here alone there is another file system at the place of the runs."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    inside = " ".join(["mount -t tmpfs none", f"{hidden} &&", *PHALANX, *words(1, 0.0)])
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside],
        env={**os.environ, **slurm.variables, "PHALANX_RUNS": str(hidden / "runs")},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "unshare" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mount of our own: {ended.stderr.strip()}")
    assert ended.returncode == 3, ended.stderr
    assert "its nodes cannot write to" in ended.stderr
    assert "Set PHALANX_RUNS to a folder that all nodes share." in ended.stderr


def test_what_slurm_refuses_is_said_in_its_words(slurm: OwnSlurm, tmp_path: Path) -> None:
    given = words(1, 0.0, "slurm:partition=nowhere")
    ended = phalanx(*given, cwd=tmp_path, **slurm.variables)
    assert ended.returncode == 2
    assert "error: Slurm did not take the job: Batch job submission failed: " in ended.stderr
