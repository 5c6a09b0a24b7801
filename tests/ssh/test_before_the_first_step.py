"""What a dry run shows of a run, and what an agent costs while one trains."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from lab_machines import lab
from ssh_runs import Bench, agents

pytestmark = pytest.mark.slow
__all__ = ["lab"]
MINUTE = 60.0


@pytest.mark.timeout(400)
def test_a_dry_run_prints_what_starts(bench: Bench) -> None:
    words = ["run", "train.py", "--pool", str(bench.pool), "--epochs", "1"]
    dry = bench.do(*words, "--dry-run", "--json", limit=120)
    assert dry.code == 0, dry.text
    assert not bench.runs.exists(), "a dry run leaves nothing"
    ended = bench.do(*words, limit=300)
    assert ended.code == 0, ended.text
    run = bench.latest()
    printed = dry.text[dry.text.index('{"dry_run"') :]
    (shown,) = json.JSONDecoder().raw_decode(printed)[0]["launches"]
    record = json.loads((run / "launch.json").read_text())
    started = re.sub(r"TIME-train\S*?(?=[/\"])", run.name, json.dumps(shown["workers"]))
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
