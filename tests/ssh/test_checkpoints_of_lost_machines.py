"""The first machine, which writes the checkpoints, is gone for good: the run goes on from them."""

from __future__ import annotations

import pytest
from commands import until
from lab_machines import run_in
from ssh_runs import Bench, cut

pytestmark = pytest.mark.timeout(1200)


def _here(bench: Bench) -> list[str]:
    return sorted(p.name for p in (bench.latest() / "checkpoints").glob("[0-9]*"))


def _on(bench: Bench, machine: str) -> list[str]:
    folder = f"/run/home/.cache/phalanx/runs/{bench.latest().name}/checkpoints"
    found = run_in(bench.lab, machine, ["sh", "-c", f"ls {folder} 2>/dev/null || true"])
    return sorted(name for name in found.split() if name.isdecimal())


def test_checkpoints_are_home_while_the_run_goes_on(bench: Bench) -> None:
    running = bench.train("--checkpoint-every", "auto,keep=2")
    running.until(r"epoch\s+4/", 300.0)
    until(lambda: len(_here(bench)) == 2, 60.0)
    with cut(bench.lab, "m1"):
        ended = running.end(120.0)
        assert ended.code == 3, ended.text
        bench.do("resume", "--machines", "m2", "--epochs", "2000", "--dry-run", limit=120)
        again = bench.start("resume", "--machines", "m2", "--epochs", "2000")
        again.until(r"epoch\s+\d+/2000", 300.0)
        again.stop()
    assert "continues " in again.text
    assert "without m1: 1 worker on m2 (was 2)" in again.text


def test_a_detached_run_keeps_them_on_a_second_machine(bench: Bench) -> None:
    ended = bench.train("--detach", epochs=20000).end(300.0)
    assert ended.code == 0, ended.text
    until(lambda: len(_on(bench, "m2")) >= 2, 120.0)
    assert not _here(bench)
    with cut(bench.lab, "m1"):
        stopped = bench.do("stop", limit=240.0)
        assert _here(bench), stopped.text
        again = bench.start("resume", "--machines", "m2")
        again.until(r"epoch\s+\d+/20000", 300.0)
        again.stop()
    assert "continues " in again.text


def test_a_machine_that_cannot_be_asked_is_named(bench: Bench) -> None:
    """The controller is killed before a checkpoint is home, and the only machine is cut off."""
    running = bench.train("--checkpoint-every", "10min", machines="m1")
    running.until(r"epoch\s+2/", 300.0)
    running.stop()
    with cut(bench.lab, "m1"):
        ended = bench.do("resume", limit=240.0)
    assert ended.code == 2
    assert "none was fetched yet, and m1 could not be reached" in ended.words
    assert "ended before it wrote one" not in ended.words
