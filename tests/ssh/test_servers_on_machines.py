"""Parameter servers on machines of their own, which have no worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_machines import MakeLab, lab
from ssh_runs import Bench, nothing_left

from phalanx.lab.lab import Lab

pytestmark = pytest.mark.slow
__all__ = ["lab"]


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(4)


@pytest.mark.machines
def test_servers_alone_hold_the_parameters(bench: Bench) -> None:
    machines = "all,server:m3,server:m4"
    ended = bench.train("--strategy", "async", machines=machines, epochs=3).end(300.0)
    nothing_left(bench.lab, "m1", "m2", "m3", "m4")
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
