"""``--launcher ray`` on a real Ray of two nodes: the same weights, stopped, lost, unshared."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from commands import until
from own_ray import OwnRay
from seat_launcher_contract import (
    SeatCluster,
    SeatLauncherContract,
    background,
    checkpoints,
    run_of,
    words,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class TestRay(SeatLauncherContract):
    @pytest.fixture(scope="class")
    @classmethod
    def seats(cls, ray: OwnRay) -> SeatCluster:
        given = ["--launcher", f"ray:{ray.address}"]
        return SeatCluster("Ray", given, "Ray has 2 CPUs for 3 workers", ray.variables)


def test_a_ray_of_its_own_listens_on_loopback_only(ray: OwnRay, tmp_path: Path) -> None:
    given = words(100, 0.1, "--launcher", "ray", "--workers", "1")  # with a token of its own
    process = background(tmp_path, given, {})
    until(lambda: bool(checkpoints(tmp_path)), 120.0)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    doors = {
        str(connection.laddr.ip).removeprefix("::ffff:")
        for one in family
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 130, said
    assert doors == {"127.0.0.1"}
    assert not (run_of(tmp_path) / "cluster" / "ray.token").exists()
