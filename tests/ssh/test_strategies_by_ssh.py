"""Strategies across machines come to what they come to on one."""

from __future__ import annotations

import pytest
from ssh_runs import Bench, nothing_left

LAB = {"count": 3}
STRATEGIES = (
    pytest.param("allreduce", marks=pytest.mark.machines),
    "async", "ssp:bound=3", "localsgd:every=8", "groups:size=2", "switch:at=0.5",
)  # fmt: skip
BAND = 0.03
"""Of the test accuracy: 360 digits, of which 11 are 3 %."""
NAMES = ("m1", "m2", "m3")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_reaches_the_accuracy_of_one_host(bench: Bench, strategy: str) -> None:
    common = ["run", "train.py", "--strategy", strategy, "--epochs", "8", "--batch", "48"]
    reached = []
    for where in (["--workers", "3"], ["--pool", str(bench.pool)]):
        ended = bench.do(*common, *where, limit=240)
        assert ended.code == 0, ended.text
        reached.append(bench.summary())
    here, there = reached
    assert [m["name"] for m in there["machines"]] == list(NAMES)
    assert here["workers"] == there["workers"] == len(NAMES)
    print(f"\n{strategy}: {here['test_accuracy']:.4f} here, {there['test_accuracy']:.4f} over SSH")
    assert here["test_accuracy"] > 0.85
    assert there["test_accuracy"] == pytest.approx(here["test_accuracy"], abs=BAND)


@pytest.mark.machines
def test_servers_alone_hold_the_parameters(bench: Bench) -> None:
    machines = "all,server:m3"
    ended = bench.train("--strategy", "async", machines=machines, epochs=3).end(300.0)
    nothing_left(bench.lab, "m1", "m2", "m3")
    assert ended.code == 0
    summary = bench.summary()
    assert (summary["workers"], summary["exit_codes"]) == (2, [0, 0, 0])
    found = {machine["name"]: machine for machine in summary["machines"]}
    assert {name: one["workers"] for name, one in found.items()} == {
        "m1": 1,
        "m2": 1,
        "m3": 0,
    }
    assert all(one["network_bytes"] > 100_000 for one in found.values())
