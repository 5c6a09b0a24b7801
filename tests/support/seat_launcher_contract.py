"""What every launcher keeps whose workers sit behind seats of a cluster: Ray's, Spark's.

Slurm's, which has a job of its own instead, is tested with the same script and words."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import PHALANX, phalanx, succeeds, until
from trained import assert_same_model

SCRIPT = Path(__file__).parents[1] / "ray_cluster" / "slow_script.py"
LIMIT, BEGIN = 240.0, 200.0
"""Seconds of a whole run; until it has a checkpoint."""


@dataclass(frozen=True)
class SeatCluster:
    """A cluster of two nodes with room for one worker each, as the command line reaches it."""

    name: str
    words: list[str]
    room: str
    """What it says when three are asked for."""
    variables: dict[str, str] = field(default_factory=dict)


def words(epochs: int, pause: float, *more: str) -> list[str]:
    chosen = ["--seed", "3", "--strategy", "allreduce:shares=equal", *more]
    return ["run", str(SCRIPT), *chosen, "--", str(epochs), str(pause)]


def run_of(folder: Path) -> Path:
    (found,) = (path for path in (folder / "runs").glob("[!.]*") if path.is_dir())
    return found


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def background(folder: Path, given: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    own = {"PHALANX_RUNS": str(folder / "runs"), "COLUMNS": "200"}
    return subprocess.Popen(
        [*PHALANX, *given],
        cwd=folder,
        env={**os.environ, **variables, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def hidden(cluster: SeatCluster, folder: Path, given: list[str]) -> subprocess.Popen[str]:
    """In the background, with its runs in a file system that it alone sees; they are copied to
    where ``run_of`` looks when it has ended."""
    place = folder / "hidden"
    place.mkdir()
    command = " ".join([*PHALANX, *given])
    copy = f"code=$?; cp -r {place} {folder / 'runs'}; exit $code"
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {place} && {command}; {copy}"],
        cwd=folder,
        env={**os.environ, **cluster.variables, "PHALANX_RUNS": str(place), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str], code: int) -> None:
    said, _ = process.communicate(timeout=LIMIT)
    if "unshare:" in said or "mount:" in said:
        pytest.skip(f"no mount of our own: {said.strip()}")
    assert process.returncode == code, said
    assert "Traceback" not in said


def workers(folder: Path) -> list[psutil.Process]:
    """Of the run in ``folder``, or with it as a word; without the processes that they start."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("PHALANX_RUN", "").startswith(f"{folder}/")
            if (
                ours or str(folder) in process.cmdline()
            ) and "phalanx.launch.worker.bootstrap" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("runs/*/checkpoints/[0-9]*"))


def begun(cluster: SeatCluster, folder: Path) -> subprocess.Popen[str]:
    """In the background, with a checkpoint."""
    process = background(folder, words(200, 0.1, *cluster.words), cluster.variables)
    try:
        until(lambda: bool(checkpoints(folder)) or process.poll() is not None, BEGIN)
        assert process.poll() is None
    except AssertionError as error:
        process.terminate()
        raise AssertionError(process.communicate(timeout=180)[0]) from error
    return process


def assert_loss_is_named(cluster: SeatCluster, process: subprocess.Popen[str], at: Path) -> None:
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 3, said
    # The cluster's word or the other worker's, which comes first.
    named = rf"^error: ({cluster.name} has lost worker \d|worker \d on \S+ .*is gone)"
    assert re.search(named, said, re.M), said
    assert "Traceback" not in said
    until(lambda: not workers(at), 20.0)


class SeatLauncherContract:
    """Inherit it, and give a fixture ``seats``: a :class:`SeatCluster`."""

    @pytest.fixture(scope="class")
    @classmethod
    def local(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The same run by the launcher for one machine."""
        folder = tmp_path_factory.mktemp("local")
        given = words(2, 0.01, "--launcher", "local", "--workers", "2")
        succeeds(*given, cwd=folder, limit=LIMIT, OMP_NUM_THREADS="1")
        return run_of(folder)

    def test_ends_like_a_local_run(self, seats: SeatCluster, local: Path, tmp_path: Path) -> None:
        """Without --workers there is one for each node."""
        given = words(2, 0.01, *seats.words)
        succeeds(*given, cwd=tmp_path, limit=LIMIT, OMP_NUM_THREADS="1", **seats.variables)
        found = run_of(tmp_path)
        assert_same_model(found, local)
        assert files_of(local) - files_of(found) == {"machines/here.jsonl"}
        assert summary_of(found)["exit_codes"] == [0, 0]
        assert len(list((found / "machines").glob("*.jsonl"))) == 1
        until(lambda: not workers(tmp_path), 10.0)

    def test_a_folder_that_nodes_do_not_see_comes_home(
        self, seats: SeatCluster, local: Path, tmp_path: Path
    ) -> None:
        ended(hidden(seats, tmp_path, words(2, 0.01, *seats.words)), 0)
        found = run_of(tmp_path)
        assert_same_model(found, local)
        assert files_of(local) - files_of(found) == {"machines/here.jsonl"}
        assert "ended well" in (found / "logs" / "rank-0.log").read_text()
        assert not list(Path("/tmp").glob(f"phalanx-{os.getuid()}-.seats-*"))

    def test_checkpoints_are_home_before_their_nodes_are_lost(
        self, seats: SeatCluster, tmp_path: Path
    ) -> None:
        process = hidden(seats, tmp_path, [*words(200, 0.1, *seats.words), str(tmp_path)])
        there = f"proc/{process.pid}/root{tmp_path}/hidden/*/checkpoints/[0-9]*"
        try:
            until(lambda: any(Path("/").glob(there)) or process.poll() is not None, BEGIN)
        except AssertionError:
            for child in psutil.Process(process.pid).children():
                child.terminate()
            ended(process, 3)
            raise
        running = workers(tmp_path)
        folders = {worker.environ()["PHALANX_RUN"] for worker in running}
        for seat in {worker.parent() for worker in running}:
            assert seat is not None
            seat.kill()
        ended(process, 3)
        assert checkpoints(tmp_path)
        assert not list(run_of(tmp_path).glob(".incoming-*"))
        until(lambda: not workers(tmp_path), 20.0)
        for folder in folders:  # nothing is left that could have removed it
            shutil.rmtree(folder)

    def test_ctrl_c_stops_in_order_and_leaves_nothing(
        self, seats: SeatCluster, tmp_path: Path
    ) -> None:
        process = begun(seats, tmp_path)
        before = checkpoints(tmp_path)[-1]
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 130, said
        assert summary_of(run_of(tmp_path))["status"] == "stopped"
        assert checkpoints(tmp_path)[-1] > before, "a checkpoint is written at the end"
        until(lambda: not workers(tmp_path), 10.0)

    def test_a_killed_controller_leaves_no_worker(self, seats: SeatCluster, tmp_path: Path) -> None:
        process = begun(seats, tmp_path)
        assert len(workers(tmp_path)) == 2
        process.kill()
        process.communicate(timeout=180)
        until(lambda: not workers(tmp_path), 60.0)

    def test_a_seat_that_is_lost_is_named(self, seats: SeatCluster, tmp_path: Path) -> None:
        process = begun(seats, tmp_path)
        parent = workers(tmp_path)[-1].parent()
        assert parent is not None
        parent.kill()
        assert_loss_is_named(seats, process, tmp_path)

    def test_too_many_workers_are_refused(self, seats: SeatCluster, tmp_path: Path) -> None:
        given = words(1, 0.0, *seats.words, "--workers", "3")
        done = phalanx(*given, cwd=tmp_path, limit=LIMIT, **seats.variables)
        assert done.returncode == 2
        assert f"error: {seats.room}" in done.stderr

    def test_a_dry_run_needs_no_cluster(self, seats: SeatCluster, tmp_path: Path) -> None:
        given = words(1, 0.0, *seats.words, "--workers", "2", "--dry-run")
        done = phalanx(*given, cwd=tmp_path, **seats.variables)
        assert done.returncode == 0, done.stderr
        assert f"2 workers; {seats.name.lower()} chooses the nodes" in done.stdout
        assert not (tmp_path / "runs").exists()
