"""A run that goes on without a controller: what its machines did meanwhile comes home too."""

from __future__ import annotations

import json

import pytest
from commands import until
from lab_machines import lab, run_in
from ssh_runs import Bench, nothing_left, processes

pytestmark = pytest.mark.slow
__all__ = ["lab"]
MACHINES = ("m1", "m2")


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


@pytest.mark.machines
def test_a_run_that_ended_alone_has_all_its_samples(bench: Bench) -> None:
    ended = bench.train("--detach", epochs=30).end(90)
    assert ended.code == 0, ended.text
    until(lambda: not any("train.py" in args for args in _all_processes(bench)), 120)
    left = {machine: _settled(bench, machine) for machine in MACHINES}
    ended = bench.do("attach")
    nothing_left(bench.lab, *MACHINES)
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

    until(is_settled, 60)
    return seen[-1]
