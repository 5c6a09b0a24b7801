"""Runs that go on without a controller: what their machines did meanwhile comes home too."""

from __future__ import annotations

import json
import signal
from itertools import pairwise

import pytest
from lab_machines import lab, run_in
from ssh_runs import Bench, holds, nothing_left, processes, told

pytestmark = pytest.mark.slow
__all__ = ["lab"]
GOING = r"epoch\s+\d+/"
MACHINES = ("m1", "m2")
MOST_GAP = 5
"""Periods of sampling; busy machines are sometimes late."""


def kept(bench: Bench, machine: str) -> list[float]:
    """The moments of the samples that a machine has."""
    file = f"/run/home/.cache/phalanx/runs/{bench.latest().name}/samples.jsonl"
    lines = run_in(bench.lab, machine, ["cat", file]).splitlines()
    return [json.loads(line)["time"] for line in lines if line.endswith("}")]


def at_home(bench: Bench, machine: str) -> list[float]:
    """Those of the samples that are home, by the clock of the machine."""
    lines = (bench.latest() / "machines" / f"{machine}.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    clocks = [sample["time"] - sample["at"] for sample in samples]
    assert max(clocks) - min(clocks) < 1e-6, "one clock from beginning to end"
    return [sample["at"] for sample in samples]


def detach(bench: Bench, epochs: int) -> None:
    ended = bench.train("--detach", epochs=epochs).end(90)
    assert ended.code == 0, ended.text


def test_samples_of_the_time_alone_come_home_once(bench: Bench) -> None:
    detach(bench, epochs=20000)
    for _ in range(2):
        before = {machine: len(kept(bench, machine)) for machine in MACHINES}
        holds(lambda: all(len(kept(bench, m)) >= n + 8 for m, n in before.items()), 60)  # noqa: B023
        left = {machine: kept(bench, machine) for machine in MACHINES}
        attached = bench.start("attach")
        attached.until(GOING)
        for machine, moments in left.items():
            assert at_home(bench, machine)[: len(moments)] == moments
        attached.signal(signal.SIGKILL)
        attached.end()
    stopped = bench.do("stop")
    told(stopped, nothing_left(bench.lab, *MACHINES))
    assert stopped.code == 0 and bench.summary()["status"] == "stopped"
    for machine in MACHINES:
        home = at_home(bench, machine)
        assert len(home) > len(left[machine]) >= 16
        gaps = [after - before for before, after in pairwise(home)]
        assert min(gaps) > 0 and max(gaps) < MOST_GAP, gaps


@pytest.mark.machines
def test_a_run_that_ended_alone_has_all_its_samples(bench: Bench) -> None:
    detach(bench, epochs=30)
    holds(lambda: not any("train.py" in args for args in _all_processes(bench)), 120)
    left = {machine: _settled(bench, machine) for machine in MACHINES}
    ended = bench.do("attach")
    told(ended, nothing_left(bench.lab, *MACHINES))
    assert ended.code == 0 and bench.summary()["status"] == "done"
    assert {machine: at_home(bench, machine) for machine in MACHINES} == left


def _all_processes(bench: Bench) -> list[str]:
    return [args for machine in MACHINES for args in processes(bench.lab, machine).values()]


def _settled(bench: Bench, machine: str) -> list[float]:
    """The samples that there are when no more come."""
    seen: list[list[float]] = [[], []]

    def is_settled() -> bool:
        run_in(bench.lab, machine, ["sleep", "2.5"])  # longer than from one sample to the next
        seen.append(kept(bench, machine))
        return seen[-1] == seen[-2] and bool(seen[-1])

    holds(is_settled, 60)
    return seen[-1]
