"""``--launcher spark`` on a real, authenticated cluster: the same weights, stopped, lost."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from commands import phalanx, succeeds
from seat_launcher_contract import (
    LIMIT,
    SeatCluster,
    SeatLauncherContract,
    assert_loss_is_named,
    begun,
    run_of,
    words,
    workers,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class TestSpark(SeatLauncherContract):
    @pytest.fixture(scope="class")
    @classmethod
    def seats(cls, cluster: str) -> SeatCluster:
        given = ["--launcher", f"spark:{cluster}"]
        room = "3 workers need 3 slots at the same time, and Spark has 2"
        return SeatCluster("Spark", given, room)

    def test_an_executor_that_is_killed_is_named(self, seats: SeatCluster, tmp_path: Path) -> None:
        process = begun(seats, tmp_path)
        above = workers(tmp_path)[-1].parents()
        mark = "CoarseGrainedExecutorBackend"
        executor: psutil.Process = next(p for p in above if mark in " ".join(p.cmdline()))
        executor.kill()
        assert_loss_is_named(seats, process, tmp_path)

    def test_a_spark_of_threads_is_enough(self, seats: SeatCluster, tmp_path: Path) -> None:
        given = words(1, 0.0, "--launcher", "spark:local[2]")
        ended = succeeds(*given, cwd=tmp_path, limit=LIMIT)
        assert "ended well" in ended.stdout
        assert (run_of(tmp_path) / "model.safetensors").exists()

    def test_a_wrong_secret_is_one_line(
        self, seats: SeatCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "spark-defaults.conf").write_text(
            "spark.authenticate true\nspark.authenticate.secret wrong\n"
        )
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        ended = phalanx(*words(1, 0.0, *seats.words), cwd=tmp_path, limit=LIMIT)
        assert ended.returncode == 3
        assert "error: cannot connect to Spark at" in ended.stderr
        assert "Traceback" not in ended.stderr
