"""Parameter servers on machines of their own, which have no worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_machines import MakeLab, lab
from ssh_runs import Bench, kill_in, nothing_left, processes, told

from phalanx.lab.lab import Lab

pytestmark = pytest.mark.slow
__all__ = ["lab"]
SERVER = "phalanx.train.start.joining_hosts"


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(4)


def served(bench: Bench, machine: str) -> list[int]:
    return [pid for pid, args in processes(bench.lab, machine).items() if SERVER in args]


@pytest.mark.machines
def test_servers_alone_hold_the_parameters(bench: Bench) -> None:
    machines = "all,server:m3,server:m4"
    ended = bench.train("--strategy", "async", machines=machines, epochs=3).end(300.0)
    told(ended, nothing_left(bench.lab, "m1", "m2", "m3", "m4"))
    assert ended.code == 0
    summary = bench.summary()
    assert (summary["workers"], summary["exit_codes"]) == (2, [0, 0, 0, 0])
    found = {machine["name"]: machine for machine in summary["machines"]}
    assert {name: one["workers"] for name, one in found.items()} == {
        "m1": 1,
        "m2": 1,
        "m3": 0,
        "m4": 0,
    }
    assert all(one["network_bytes"] > 100_000 for one in found.values())


def test_a_run_ends_with_a_server_that_is_killed(bench: Bench) -> None:
    running = bench.train("--strategy", "ssp:bound=3", machines="m1,m2,server:m3")
    running.until(r"epoch +3", 120.0)
    (pid,) = served(bench, "m3")
    assert not served(bench, "m1") and not served(bench, "m2")
    kill_in(bench.lab, "m3", pid)
    ended = running.end(120.0)
    told(ended, nothing_left(bench.lab, "m1", "m2", "m3"))
    assert ended.code != 0
    assert "ps (process 2 on m3) was killed by SIGKILL" in ended.words
