"""``--launcher ray`` on a real Ray of two nodes: the same weights, stopped, lost, unshared."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import PHALANX, phalanx, until
from own_ray import OwnRay
from trained import assert_same_model

SCRIPT = Path(__file__).with_name("slow_script.py")
LIMIT = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def words(epochs: int, pause: float, launcher: str, *more: str) -> list[str]:
    return [
        "run", str(SCRIPT), "--launcher", launcher, "--seed", "3", "--balance", "off", *more,
        "--", str(epochs), str(pause),
    ]  # fmt: skip


def run_of(folder: Path) -> Path:
    (found,) = (path for path in (folder / "runs").glob("[!.]*") if path.is_dir())
    return found


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by the launcher for one machine."""
    folder = tmp_path_factory.mktemp("local")
    given = words(2, 0.01, "local", "--workers", "2")
    ended = phalanx(*given, cwd=folder, OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    return run_of(folder)


def background(ray: OwnRay, folder: Path, *more: str) -> subprocess.Popen[str]:
    given = words(200, 0.1, "ray", "--ray-address", ray.address, *more)
    return subprocess.Popen(
        [*PHALANX, *given],
        cwd=folder,
        env={**os.environ, **ray.variables, "PHALANX_RUNS": str(folder / "runs")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers(folder: Path) -> list[psutil.Process]:
    """Of the run in ``folder``, without the processes that they start."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("PHALANX_RUN", "").startswith(f"{folder}/")
            if ours and "phalanx.launch.worker.bootstrap" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("runs/*/checkpoints/[0-9]*"))


def test_ends_like_a_local_run(ray: OwnRay, local: Path, tmp_path: Path) -> None:
    """Without --workers there is one for each node."""
    given = words(2, 0.01, "ray", "--ray-address", ray.address)
    ended = phalanx(*given, cwd=tmp_path, limit=LIMIT, OMP_NUM_THREADS="1", **ray.variables)
    assert ended.returncode == 0, ended.stderr
    found = run_of(tmp_path)
    assert_same_model(found, local)
    assert files_of(local) - files_of(found) == {"machines/here.jsonl"}
    assert summary_of(found)["exit_codes"] == [0, 0]
    until(lambda: not workers(tmp_path), 10.0)


def test_a_folder_that_nodes_do_not_see_comes_home(
    ray: OwnRay, local: Path, tmp_path: Path
) -> None:
    """Here alone there is another file system at the place of the runs."""
    hidden, kept = tmp_path / "hidden", tmp_path / "runs"
    hidden.mkdir()
    given = words(2, 0.01, "ray", "--ray-address", ray.address)
    inside = (
        f"mount -t tmpfs none {hidden} && {' '.join([*PHALANX, *given])} && cp -r {hidden} {kept}"
    )
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside],
        env={**os.environ, **ray.variables, "PHALANX_RUNS": str(hidden), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    if "unshare" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mount of our own: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
    found = run_of(tmp_path)
    assert_same_model(found, local)
    assert files_of(local) - files_of(found) == {"machines/here.jsonl"}
    assert "ended well" in (found / "logs" / "rank-0.log").read_text()
    assert not list(Path("/tmp").glob(f"phalanx-{os.getuid()}-.ray-*"))


def test_ctrl_c_stops_in_order_and_leaves_nothing(ray: OwnRay, tmp_path: Path) -> None:
    process = background(ray, tmp_path)
    until(lambda: bool(checkpoints(tmp_path)), 90.0)
    before = checkpoints(tmp_path)[-1]
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert summary_of(run_of(tmp_path))["status"] == "stopped"
    assert checkpoints(tmp_path)[-1] > before, "a checkpoint is written at the end"
    until(lambda: not workers(tmp_path), 10.0)


def test_a_killed_controller_leaves_no_worker(ray: OwnRay, tmp_path: Path) -> None:
    process = background(ray, tmp_path)
    until(lambda: bool(checkpoints(tmp_path)), 90.0)
    assert len(workers(tmp_path)) == 2
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not workers(tmp_path), 60.0)


def test_an_actor_that_is_lost_is_named(ray: OwnRay, tmp_path: Path) -> None:
    process = background(ray, tmp_path)
    until(lambda: bool(checkpoints(tmp_path)), 90.0)
    parent = workers(tmp_path)[-1].parent()
    assert parent is not None
    parent.kill()
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 3, said
    # Ray's word or the other worker's, which comes first.
    assert re.search(r"^error: (Ray has lost worker \d|worker \d on \S+ .*is gone)", said, re.M), (
        said
    )
    until(lambda: not workers(tmp_path), 10.0)


def test_too_many_workers_are_refused(ray: OwnRay, tmp_path: Path) -> None:
    given = words(1, 0.0, "ray", "--ray-address", ray.address, "--workers", "3")
    ended = phalanx(*given, cwd=tmp_path, **ray.variables)
    assert ended.returncode == 2
    assert "error: Ray has 2 CPUs for 3 workers" in ended.stderr


def test_a_ray_of_its_own_listens_on_loopback_only(ray: OwnRay, tmp_path: Path) -> None:
    given = words(100, 0.1, "ray", "--workers", "1")  # with a token of its own
    process = subprocess.Popen(
        [*PHALANX, *given],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_RUNS": str(tmp_path / "runs")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until(lambda: bool(checkpoints(tmp_path)), 120.0)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    doors = {
        str(connection.laddr.ip).removeprefix("::ffff:")
        for one in family
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert doors == {"127.0.0.1"}
    assert not (run_of(tmp_path) / "cluster" / "ray.token").exists()
