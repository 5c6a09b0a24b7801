"""What a run of nine machines tells of them is what the kernel counted, read from outside."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ssh_runs import Bench

from phalanx.lab.lab import Lab

LAB = {"count": 9, "cpu": "12,12,12,12,12,25,25,25,25"}
NAMES = tuple(f"m{number}" for number in range(1, 10))
WATCHED = 60.0
LOOK = 0.1
OF_ALL, OF_ONE = 0.01, 0.05
TICKS = os.sysconf("SC_CLK_TCK")


class Reading(NamedTuple):
    """What the kernel says of a machine; time is that of the one clock of this host."""

    time: float
    user: float
    system: float
    received: float
    sent: float
    memory: float


FIELDS = ("user", "system", "received", "sent")


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
            now, network = time.monotonic(), self._lab.counters(self._name)
            used = dict(line.split() for line in self._file("cpuacct.stat").splitlines())
            cached = dict(line.split() for line in self._file("memory.stat").splitlines())
            memory = int(self._file("memory.usage_in_bytes")) - int(cached["total_inactive_file"])
            cpu = (int(used[kind]) / TICKS for kind in ("user", "system"))
            self.readings.append(Reading(now, *cpu, *network, memory))

    def _file(self, name: str) -> str:
        return next(f for group in self._groups if (f := group / name).exists()).read_text()

    def at(self, moment: float, get: Callable[[Reading], float]) -> float:
        """Between the two readings around that moment."""
        after = bisect_left(self.readings, moment, key=lambda reading: reading.time)
        first, second = self.readings[after - 1], self.readings[after]
        part = (moment - first.time) / (second.time - first.time)
        return get(first) + part * (get(second) - get(first))

    def grown(self, began: float, ended: float, field: str) -> float:
        return self.at(ended, lambda r: getattr(r, field)) - self.at(
            began, lambda r: getattr(r, field)
        )

    def mean_memory(self, began: float, ended: float) -> float:
        found = [r.memory for r in self.readings if began <= r.time <= ended]
        return sum(found) / len(found)


def samples_of(run: Path, name: str) -> list[dict[str, Any]]:
    lines = (run / "machines" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(500)
def test_figures_are_those_of_the_kernel(bench: Bench) -> None:
    """Compared from the first reading of a machine's agent to its last, as the summary does."""
    watching = {name: Kernel(bench.lab, name) for name in NAMES}
    try:
        running = bench.train("--batch", "144", machines="all", epochs=20_000)
        running.until(r"epoch\s+1/", 240)
        time.sleep(WATCHED)
        running.signal(signal.SIGINT)
        assert running.end(90).code == 130
    finally:
        for kernel in watching.values():
            kernel.stop()
    run, summary = bench.latest(), bench.summary()
    told: dict[str, list[float]] = {field: [] for field in FIELDS}
    counted: dict[str, list[float]] = {field: [] for field in FIELDS}
    for machine in summary["machines"]:
        name, totals, kernel = machine["name"], machine["totals"], watching[machine["name"]]
        samples = samples_of(run, name)
        began, ended = samples[0]["time"], samples[-1]["time"]
        assert ended - began > WATCHED
        for field, total in zip(FIELDS, totals.values(), strict=True):
            told[field].append(total)
            counted[field].append(kernel.grown(began, ended, field))
            assert total == pytest.approx(counted[field][-1], rel=OF_ONE), f"{field} of {name}"
        memory = machine["resources"]["memory_bytes"]["avg"]
        assert memory == pytest.approx(kernel.mean_memory(began, ended), rel=OF_ONE)
        use, alone = machine["resources"], machine["resources_training"]
        assert use["throttled_percent"]["avg"] > 0, "its quota is far less than it wants"
        assert use["retransmits_per_second"]["min"] is not None
        assert use["pressure_cpu"]["avg"] > 0, "its own processes wait"
        assert 0 < alone["cpu_user"]["avg"] <= alone["cpu_user"]["max"] <= use["cpu_user"]["max"]
        assert machine["before"]["memory_bytes"] > 0
    for field in FIELDS:
        ours, theirs = sum(told[field]), sum(counted[field])
        print(
            f"{field}: {ours:.6g} told, {theirs:.6g} counted ({100 * (ours / theirs - 1):+.3f} %)"
        )
    for field in FIELDS:
        assert sum(told[field]) == pytest.approx(sum(counted[field]), rel=OF_ALL), field
    ended = bench.do("report", run.name, "--json")
    page = Path(json.loads(ended.text.splitlines()[-1])["report"])
    rows = list(csv.DictReader((page.parent / "figures" / "machines.csv").open()))
    assert {row["machine"] for row in rows} == set(NAMES)
    assert "machines-heat" in page.read_text()
