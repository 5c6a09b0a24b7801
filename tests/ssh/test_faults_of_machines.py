"""A machine is cut off, dies, or loses its agent: the run ends or goes on as promised."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import until
from ssh_runs import (
    Bench,
    Ended,
    Running,
    agents,
    cut,
    kill_in,
    nothing_left,
    processes,
)

from phalanx.lab.lab import Lab

LAB = {"rate": "400mbit"}
GOING = r"epoch\s+2/"
KILLS = """
import os, signal, time
if os.environ["PHALANX_RANK"] == "0":
    time.sleep(5.0)  # the other one ends meanwhile
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60.0)
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that are cut off are left to themselves for a shorter time than usual."""
    monkeypatch.setenv("PHALANX_RECONNECT", "10")


def _cut_off(bench: Bench, running: Running, victim: str, limit: float = 60.0) -> Ended:
    """How a run ends from which a machine is cut off now; none of it may be left anywhere."""
    with cut(bench.lab, victim):
        ended = running.end(limit)
        nothing_left(bench.lab, "m1", "m2")
    return ended


def test_cut_off_while_data_is_copied(bench: Bench, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "noise").write_bytes(os.urandom(300_000_000))
    running = bench.train("--data", str(data))
    running.until(r"m2: copying the data, [1-9]")
    ended = _cut_off(bench, running, "m2")
    assert ended.code == 3
    assert "m2 has not answered" in ended.words
    assert bench.summary()["exit_codes"] == [None, None]


def works(lab: Lab, name: str) -> bool:
    return any("bootstrap" in words for words in processes(lab, name).values())


def test_cut_off_while_workers_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for each other for minutes; nobody has to wait for that."""
    monkeypatch.setenv("PHALANX_RECONNECT", "0")  # or those of the machine cut off do, too
    running = bench.train()
    until(lambda: works(bench.lab, "m1") and works(bench.lab, "m2"), 60)
    ended = _cut_off(bench, running, "m2")
    assert ended.code == 3
    assert "m2 has not answered" in ended.words
    assert "Traceback" not in ended.text
    assert bench.summary()["exit_codes"][1] is None


@pytest.mark.parametrize("victim", ["m1", "m2"])
def test_cut_off_under_allreduce(bench: Bench, victim: str) -> None:
    running = bench.train()
    running.until(GOING)
    ended = _cut_off(bench, running, victim)
    assert ended.code == 3
    assert victim in ended.words
    assert ended.text.count(f"{victim} has not answered") == 1, "told once"
    assert bench.summary()["exit_codes"] == ([None, 3] if victim == "m1" else [3, None])


@pytest.mark.parametrize("which", ["guardian", pytest.param("agent", marks=pytest.mark.machines)])
def test_agent_killed(bench: Bench, which: str) -> None:
    running = bench.train()
    running.until(GOING)
    guardian, agent = agents(bench.lab, "m2")[:2]
    kill_in(bench.lab, "m2", guardian if which == "guardian" else agent)
    ended = running.end()
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 3
    assert "m2" in ended.words
    assert bench.summary()["exit_codes"][0] in (3, 143), "lost another, or was told to stop by it"


def test_agent_of_the_model_killed_after_the_last_step(bench: Bench) -> None:
    """All workers have trained to the end, and the first machine takes the model along."""
    script = bench.project / "train.py"
    text = script.read_text()
    script.write_text(text + KILLS)
    ended = bench.train(epochs=2).end(120.0)
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 3
    assert "its model did not arrive here: the agent on m1 ended" in ended.words
    assert bench.summary()["status"] == "failed"
    script.write_text(text)
    again = bench.do("resume", limit=120.0)
    assert again.code == 0, again.text
    assert (bench.latest() / "model.safetensors").exists()


@pytest.mark.machines
def test_worker_killed(bench: Bench) -> None:
    running = bench.train()
    running.until(GOING)
    worker = next(pid for pid, args in processes(bench.lab, "m2").items() if "bootstrap" in args)
    kill_in(bench.lab, "m2", worker)
    ended = running.end()
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 1
    assert "worker 1 on m2 was killed by SIGKILL" in ended.words
    first, second = bench.summary()["exit_codes"]
    assert second == -9
    assert first not in (None, 0)
