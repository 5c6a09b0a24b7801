"""How long it takes from the command to the first step, and what an agent costs meanwhile.

Nothing here asserts a time of a busy host: the figures are printed, with the load they were
measured under.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_machines import MakeLab, lab
from ssh_runs import Bench, agents

from phalanx.lab.lab import Lab

pytestmark = pytest.mark.slow
__all__ = ["lab"]
REPEATS = 3
MINUTE = 60.0
STAMPED = """
import time
import torch  # the worker has done so already, to seed it
from torch import nn
import phalanx

print("stamp torch", time.monotonic(), flush=True)
train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
print("stamp made", time.monotonic(), flush=True)
phalanx.fit(model, optimizer=optimizer, loss=nn.CrossEntropyLoss(),
            train=train, test=test, epochs=2, batch=320)
"""
PARTS = ("look", "ship and import torch", "script", "meet", "first step")


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(5)


@pytest.fixture
def bench(bench: Bench) -> Bench:
    (bench.project / "stamped.py").write_text(STAMPED)
    return bench


def parts_of(run: Path, began: float) -> list[float]:
    """Seconds of each part; of the workers, the last one counts."""
    to_monotonic = time.monotonic() - time.time()
    settled = (run / "launch.json").stat().st_mtime + to_monotonic
    logs = [path.read_text() for path in (run / "logs").glob("rank-*.log")]
    logged = {
        word: max(
            float(found[1]) for log in logs if (found := re.search(rf"stamp {word} (\S+)", log))
        )
        for word in ("torch", "made")
    }
    events = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (run / "events").glob("rank-*.jsonl")
    ]
    joined = max(next(e["time"] for e in log if e["type"] == "joined") for log in events)
    steps = [next(e for e in log if e["type"] == "steps") for log in events]
    names = ("input", "compute", "send", "wait", "reduce", "update", "settle")
    stepped = max(s["began"][0] + sum(s[name][0] for name in names) for s in steps)
    moments = [
        began,
        settled,
        logged["torch"],
        logged["made"],
        joined,
        stepped,
    ]
    return [after - before for before, after in itertools.pairwise(moments)]


class Processors:
    """What all machines have used so far, read some times a second."""

    def __init__(self, lab: Lab) -> None:
        files = [group / "cpuacct.usage" for m in lab.machines for group in m.folders]
        self._files = [file for file in files if file.exists()]
        self.readings: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            used = sum(int(file.read_text()) for file in self._files) / 1e9
            self.readings.append((time.monotonic(), used))

    def until(self, moment: float) -> float:
        return next(used for at, used in self.readings if at >= moment) - self.readings[0][1]


@pytest.mark.timeout(1200)
def test_from_the_command_to_the_first_step(bench: Bench) -> None:
    words = ["run", "stamped.py", "--pool", str(bench.pool), "--batch", "320"]
    assert bench.do(*words, limit=300).code == 0, "the first run, which ships"
    found = []
    for _ in range(REPEATS):
        load, processors = os.getloadavg()[0], Processors(bench.lab)
        began = time.monotonic()
        try:
            ended = bench.do(*words, limit=300)
        finally:
            processors.stop()
        assert ended.code == 0, ended.text
        found.append(parts_of(bench.latest(), began))
        assert all(part >= 0 for part in found[-1]), "the parts are not in order"
        total = sum(found[-1])
        used = processors.until(began + total)
        told = ", ".join(f"{name} {s:.2f}" for name, s in zip(PARTS, found[-1], strict=True))
        print(f"\n{total:.1f} s at load {load:.1f}: {told}; "
              f"the machines used {used:.1f} s of processors")  # fmt: skip
    totals = [sum(parts) for parts in found]
    medians = [statistics.median(part) for part in zip(*found, strict=True)]
    print(f"median {statistics.median(totals):.1f} s of {REPEATS}:",
          ", ".join(f"{n} {s:.2f}" for n, s in zip(PARTS, medians, strict=True)))  # fmt: skip


@pytest.mark.timeout(400)
def test_a_dry_run_prints_what_starts(bench: Bench) -> None:
    words = ["run", "stamped.py", "--pool", str(bench.pool), "--batch", "320"]
    dry = bench.do(*words, "--dry-run", "--json", limit=120)
    assert dry.code == 0, dry.text
    assert not bench.runs.exists(), "a dry run leaves nothing"
    ended = bench.do(*words, limit=300)
    assert ended.code == 0, ended.text
    run = bench.latest()
    printed = dry.text[dry.text.index('{"dry_run"') :]
    (shown,) = json.JSONDecoder().raw_decode(printed)[0]["launches"]
    record = json.loads((run / "launch.json").read_text())
    started = re.sub(r"TIME-stamped\S*?(?=[/\"])", run.name, json.dumps(shown["workers"]))
    assert json.loads(started) == record["workers"]
    assert shown["plan"] == json.loads((run / "plan.json").read_text())


@pytest.mark.timeout(400)
def test_an_agent_costs_little(bench: Bench) -> None:
    running = bench.train(machines="m1,m2", epochs=100_000)
    running.until(r"epoch\s+2/", 180)
    inside = Path(f"/proc/{bench.lab.machine('m1').pid}/root/proc")
    pids = agents(bench.lab, "m1")
    assert len(pids) == 2, "one that watches, one that works"
    before, began = [_ticks(inside, pid) for pid in pids], time.monotonic()
    time.sleep(MINUTE)
    used = [_ticks(inside, pid) - ticks for pid, ticks in zip(pids, before, strict=True)]
    seconds = time.monotonic() - began
    share = 100 * sum(used) / os.sysconf("SC_CLK_TCK") / seconds
    own = [_memory(inside, pid) for pid in pids]
    running.signal(signal.SIGINT)
    assert running.end(60).code == 130
    print(f"\nagent: {share:.2f} % of a core over {seconds:.0f} s, "
          f"{sum(own) / 1e6:.1f} MB of its own")  # fmt: skip
    assert share <= 1.0
    assert sum(own) <= 50e6


def _ticks(proc: Path, pid: int) -> int:
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _memory(proc: Path, pid: int) -> int:
    """Its share of what is in memory (Pss): pages that several processes have count once."""
    for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")
