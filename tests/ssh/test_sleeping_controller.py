"""The computer that controls a run sleeps, or loses its machines for a while: the run goes on."""

from __future__ import annotations

import json
import re
import signal
import time
from itertools import pairwise

import pytest
from commands import until
from lab_machines import run_in
from ssh_runs import Bench, Running, cut, nothing_left, processes

EPOCHS = 60
TRAINS = """
import time
import torch
from torch import nn
import phalanx

model = nn.Linear(4, 2)
x, y = torch.randn(64, 4), torch.randint(2, (64,))
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in run.epochs(60):
    for a, b in run.batches((x, y), batch=32):
        run.backward(nn.functional.cross_entropy(model(a), b))
        run.step()
    time.sleep(0.5)
    print("line", epoch, flush=True)
"""
LIMIT = 12.0
"""Seconds: longer than the eight after which agents find that they are alone."""


@pytest.fixture
def bench(bench: Bench) -> Bench:
    (bench.project / "trains.py").write_text(TRAINS)
    return bench


def start(bench: Bench, machines: str, reconnect: int) -> Running:
    words = ["run", "trains.py", "--pool", str(bench.pool), "--machines", machines]
    running = bench.start(*words, PHALANX_RECONNECT=str(reconnect))
    running.until(r"line 3")
    return running


def sleep(running: Running, seconds: float) -> None:
    running.signal(signal.SIGSTOP)
    time.sleep(seconds)
    running.signal(signal.SIGCONT)


def everything_came_home(bench: Bench, machines: int) -> None:
    """Every line and every epoch once, in order; samples without a hole."""
    summary = bench.summary()
    assert (summary["status"], summary["exit_codes"]) == ("done", [0] * machines)
    assert [row["epoch"] for row in summary["history"]] == list(range(EPOCHS))
    for rank in range(machines):
        log = (bench.latest() / "logs" / f"rank-{rank}.log").read_text()
        numbers = [int(number) for number in re.findall(r"^line (\d+)$", log, re.MULTILINE)]
        assert numbers == list(range(numbers[0], numbers[0] + EPOCHS)), f"of rank {rank}"
        lines = (bench.latest() / "machines" / f"m{rank + 1}.jsonl").read_text().splitlines()
        moments = [json.loads(line)["at"] for line in lines]
        gaps = [after - before for before, after in pairwise(moments)]
        assert min(gaps) > 0 and max(gaps) < LIMIT / 2, gaps


def test_a_sleep_is_said_and_the_run_goes_on(bench: Bench) -> None:
    running = start(bench, "m1,m2", reconnect=120)
    sleep(running, LIMIT)
    ended = running.end(120)
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 0
    assert re.search(r"this computer slept, or this command was stopped, for 1[0-9] s", ended.words)
    for machine in ("m1", "m2"):
        assert f"{machine} is connected again" in ended.words
        assert f"{machine} has not answered" not in ended.words, "blamed"
    everything_came_home(bench, 2)


def test_after_a_longer_sleep_attach_brings_everything_home(bench: Bench) -> None:
    running = start(bench, "m1,m2", reconnect=10)
    sleep(running, LIMIT + 2)
    ended = running.end(30)
    assert ended.code == 3, ended.text
    assert f"phalanx attach {bench.latest().name}" in ended.words
    assert "the run goes on without this computer" in ended.words
    assert "running" in bench.do("runs").text
    attached = bench.do("attach")
    nothing_left(bench.lab, "m1", "m2")
    assert attached.code == 0
    everything_came_home(bench, 2)


def test_a_sleep_in_which_the_run_ends(bench: Bench) -> None:
    running = start(bench, "m1", reconnect=120)
    running.until(r"line 50")
    sleep(running, LIMIT + 8)
    ended = running.end(60)
    nothing_left(bench.lab, "m1")
    assert ended.code == 0
    everything_came_home(bench, 1)


def test_a_network_that_is_cut_for_a_while(bench: Bench) -> None:
    running = start(bench, "m1", reconnect=120)
    with cut(bench.lab, "m1"):
        running.until("m1 has not answered for 8 seconds; trying for 120 s to reach it again")
    ended = running.end(150)
    nothing_left(bench.lab, "m1")
    assert ended.code == 0 and "m1 is connected again" in ended.words
    assert "this computer slept" not in ended.words
    everything_came_home(bench, 1)


def test_killed_in_its_sleep_the_run_can_be_attached_to(bench: Bench) -> None:
    """As a laptop whose battery is empty: nobody was there to write down that it is detached."""
    running = start(bench, "m1", reconnect=120)
    running.signal(signal.SIGSTOP)
    time.sleep(LIMIT)
    running.signal(signal.SIGKILL)
    running.end()
    assert processes(bench.lab, "m1")
    attached = bench.do("attach", bench.latest().name)
    nothing_left(bench.lab, "m1")
    assert attached.code == 0
    everything_came_home(bench, 1)


def test_reattached_and_killed_the_machines_are_empty(bench: Bench) -> None:
    """The controller that came back is the run's own again."""
    running = start(bench, "m1,m2", reconnect=120)
    sleep(running, LIMIT)
    for machine in ("m1", "m2"):
        running.until(f"{machine} is connected again")
    running.signal(signal.SIGKILL)
    running.end()
    nothing_left(bench.lab, "m1", "m2")


def test_stopped_while_no_machine_answers(bench: Bench) -> None:
    running = start(bench, "m1", reconnect=120)
    with cut(bench.lab, "m1"):
        running.until("m1 has not answered for 8 seconds")
        running.signal(signal.SIGINT)
        ended = running.end(60)
    assert ended.code == 130, ended.text
    assert "no machine can be reached; the run cannot be stopped" in ended.words
    until(lambda: run_in(bench.lab, "m1", ["true"]) == "")
    bench.do("stop", bench.latest().name)
    nothing_left(bench.lab, "m1")
    assert bench.summary()["status"] == "stopped"
