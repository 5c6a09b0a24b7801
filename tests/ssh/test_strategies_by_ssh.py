"""Strategies across machines come to what they come to on one; figures are the kernel's own."""

from __future__ import annotations

import json
import signal
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ssh_runs import Bench, nothing_left

from phalanx.core import words
from phalanx.lab.lab import Lab

LAB = {"count": 3}
STRATEGIES = (
    pytest.param("allreduce", marks=pytest.mark.machines),
    "async", "ssp:bound=3", "localsgd:every=8", "groups:size=2", "switch:at=0.5",
)  # fmt: skip
BAND = 0.03
"""Of the test accuracy: 360 digits, of which 11 are 3 %."""
NAMES = ("m1", "m2", "m3")
WATCHED = 25.0
LOOK = 0.1
CLOSE = 0.05


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


class Reading(NamedTuple):
    """What the kernel says of a machine; time is that of the one clock of this host."""

    time: float
    cpu: float
    memory: float
    network: float


class Kernel:
    """Reads the counters of a machine from outside, some times a second."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab, self._name = lab, name
        self._groups = lab.machine(name).folders
        self.readings: list[Reading] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            cached = dict(line.split() for line in self._file("memory.stat").splitlines())
            used = int(self._file("memory.usage_in_bytes")) - int(cached["total_inactive_file"])
            cpu = int(self._file("cpuacct.usage")) / 1e9
            network = sum(self._lab.counters(self._name))
            self.readings.append(Reading(time.monotonic(), cpu, used, network))

    def _file(self, name: str) -> str:
        return next(f for group in self._groups if (f := group / name).exists()).read_text()

    def at(self, moment: float, get: Callable[[Reading], float]) -> float:
        """Between the two readings around that moment."""
        after = bisect_left(self.readings, moment, key=lambda reading: reading.time)
        first, second = self.readings[after - 1], self.readings[after]
        part = (moment - first.time) / (second.time - first.time)
        return get(first) + part * (get(second) - get(first))

    def grown(self, began: float, ended: float, get: Callable[[Reading], float]) -> float:
        return self.at(ended, get) - self.at(began, get)

    def mean_memory(self, began: float, ended: float) -> float:
        found = [r.memory for r in self.readings if began <= r.time <= ended]
        return sum(found) / len(found)


def samples_of(run: Path, name: str) -> list[dict[str, Any]]:
    lines = (run / "machines" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(300)
def test_figures_are_those_of_the_kernel(bench: Bench) -> None:
    """Compared from the first reading of a machine's agent to its last, as the summary does."""
    watching = {name: Kernel(bench.lab, name) for name in NAMES}
    try:
        running = bench.train("--batch", "48", machines="all", epochs=20_000)
        running.until(r"epoch\s+2/", 180)
        time.sleep(WATCHED)
        running.signal(signal.SIGINT)
        assert running.end(60).code == 130
    finally:
        for kernel in watching.values():
            kernel.stop()
    run, summary = bench.latest(), bench.summary()
    page = Path(json.loads(bench.do("report", run.name, "--json").text.splitlines()[-1])["report"])
    cores = {m["name"]: m["cores"] for m in json.loads((run / "plan.json").read_text())["machines"]}
    for machine in summary["machines"]:
        name, use = machine["name"], machine["resources"]
        samples, kernel = samples_of(run, name), watching[name]
        began, ended = samples[0]["time"], samples[-1]["time"]
        assert ended - began > WATCHED
        told = {
            "cpu": use["cpu_percent"]["avg"] / 100 * cores[name] * (ended - began),
            "memory": use["memory_bytes"]["avg"],
            "network": machine["network_bytes"],
            "network rate": use["network_bytes_per_second"]["avg"] * (ended - began),
        }
        network = kernel.grown(began, ended, lambda r: r.network)
        counted = {
            "cpu": kernel.grown(began, ended, lambda r: r.cpu),
            "memory": kernel.mean_memory(began, ended),
            "network": network,
            "network rate": network,
        }
        print(f"\n{name}, {ended - began:.1f} s:", *(
            f"{what} {told[what]:.5g} told, {counted[what]:.5g} counted"
            f" ({100 * (told[what] / counted[what] - 1):+.2f} %)" for what in told
        ), sep="\n  ")  # fmt: skip
        for what, value in told.items():
            assert value == pytest.approx(counted[what], rel=CLOSE), f"{what} of {name}"
        assert words.size(machine["network_bytes"]) in page.read_text()
