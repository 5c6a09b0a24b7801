"""A run on machines as it mostly is: what a dry run shows, what agents cost, what comes home."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from commands import until
from lab_machines import run_in
from ssh_runs import Bench, agents, nothing_left, processes

MINUTE = 60.0
MACHINES = ("m1", "m2")
READS = """
from pathlib import Path
import torch
from torch import nn
from safetensors.torch import save_file
import phalanx

model = nn.Linear(4, 2)
train = torch.randn(64, 4), torch.randint(2, (64,))  # before join, after which workers draw apart
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in run.epochs(1):
    for x, y in run.batches(train, batch=32):
        run.backward(nn.functional.cross_entropy(model(x), y))
        run.step()
assert [path.read_bytes() for path in Path(run.data).iterdir()] == [b"data"]
save_file(dict(model.state_dict()), Path(run.folder) / f"weights-{run.rank}.safetensors")
Path(f"remark {run.rank}.txt").write_text("kept where it is")
"""


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


# -- what comes home -------------------------------------------------------------------------


@pytest.mark.machines
def test_weights_come_home_and_other_files_are_kept(bench: Bench, tmp_path: Path) -> None:
    (bench.project / "reads.py").write_text(READS)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "part").write_bytes(b"data")
    words = ["run", "reads.py", "--pool", str(bench.pool), "--data", str(tmp_path / "small")]
    ended = bench.do(*words)
    assert ended.code == 0, ended.text
    run = bench.latest()
    weights = [run / "files" / f"weights-{rank}.safetensors" for rank in (0, 1)]
    assert all(path.stat().st_size > 40 for path in weights)
    assert weights[0].read_bytes() == weights[1].read_bytes(), "all workers end with one model"
    for rank, machine in enumerate(("m1", "m2")):
        told = rf"{machine} still has 1 new file in (\S+): remark {rank}\.txt"
        found = re.search(told, ended.words)
        assert found, ended.words
        path = f"{found[1]}/remark {rank}.txt"
        assert run_in(bench.lab, machine, ["cat", path]) == "kept where it is"
        left = run_in(bench.lab, machine, ["find", "/run/home/.cache/phalanx/runs", "-type", "f"])
        assert "weights" not in left, "what came home is not kept twice"


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
