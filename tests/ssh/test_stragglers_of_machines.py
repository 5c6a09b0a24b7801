"""One of three machines is slow in five ways: it and the cause are named, and what that costs.

The cause is taken away in the middle of each run; what the run says it would gain without it is
held against how fast it then was.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from commands import until
from lab_machines import MakeLab, run_in
from ssh_runs import Bench

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.lab import network
from phalanx.lab.lab import Lab
from phalanx.observe.events.timeline import WorkerStep, read_ranks

SECONDS = 22.0
"""With the cause, and again without it: readings of links come every five seconds."""
HEALTHY_RUNS = 5
QUOTA = 30.0
MEMORY = 2 << 30
LITTLE = 330 << 20
"""What the worker needs (180 MiB), and a part of the file that it reads."""
TOLERANCE = 0.15
"""How far stated and real speed may be apart."""
SCRIPT = """
import pathlib, socket, time
import numpy as np, torch, phalanx
from torch import nn

FOLDER, HOST = pathlib.Path("FOLDER"), socket.gethostname()
rows = []

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8192

    def __getitem__(self, i):
        if (FOLDER / "slow-input").exists() and HOST.endswith("m2"):
            time.sleep(0.0005)
        if not (FOLDER / HOST).exists():
            return torch.full((256,), float(i % 7)), i % 10
        if not rows:
            rows.append(np.memmap(FOLDER / HOST, dtype=np.float32, mode="r").reshape(-1, 65536))
        row = rows[0][i * 7919 % len(rows[0])]
        return torch.from_numpy(row.reshape(256, 256).mean(1)), i % 10

layers = [m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), *layers, nn.Linear(WIDTH, 10))
data = torch.utils.data.DataLoader(Data(), shuffle=True)
phalanx.fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loss=nn.CrossEntropyLoss(), train=data, epochs=1000, batch=BATCH)
"""


@contextmanager
def _small_quota(lab: Lab, folder: Path) -> Iterator[None]:
    lab.slow("m2", QUOTA / 2.5)
    yield
    lab.slow("m2", QUOTA)


@contextmanager
def _another_process(lab: Lab, folder: Path) -> Iterator[None]:
    words = lab.command("m2", [sys.executable, "-c", "while True: pass"])
    with subprocess.Popen(words) as hog:
        try:
            yield
        finally:
            hog.kill()


@contextmanager
def _slow_input(lab: Lab, folder: Path) -> Iterator[None]:
    (folder / "slow-input").touch()
    yield
    (folder / "slow-input").unlink()


@contextmanager
def _slow_link(lab: Lab, folder: Path) -> Iterator[None]:
    yield  # from the lab's start
    machine = lab.machine("m2")
    network.shape(machine.interface, 1e9)
    network.shape("eth0", 1e9, pid=str(machine.pid))


@contextmanager
def _little_memory(lab: Lab, folder: Path) -> Iterator[None]:
    for machine in lab.machines:  # each has a file of its own, whose pages count as its memory
        name = run_in(lab, machine.name, ["hostname"])
        run_in(
            lab, machine.name, ["dd", "if=/dev/zero", f"of={folder / name}", "bs=1M", "count=160"]
        )
    _limit_memory(lab, LITTLE)
    yield
    _limit_memory(lab, MEMORY)


def _limit_memory(lab: Lab, size: int) -> None:
    for folder in lab.machine("m2").folders:
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (folder / name).exists():
                (folder / name).write_text(str(size))


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("cause", "way", "rate"),
    [
        ("throttled", _small_quota, None),
        ("another process", _another_process, None),
        ("slow input", _slow_input, None),
        ("slow network", _slow_link, "m2=100mbit,1gbit"),
        ("memory", _little_memory, None),
    ],
)
def test_machine_cause_and_cost(
    cause: str,
    way: Callable[[Lab, Path], AbstractContextManager[None]],
    rate: str | None,
    lab: MakeLab,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    machines = lab(3, cpu=str(QUOTA), rate=rate, memory=MEMORY, share=[tmp_path])
    for group in {folder.parent for machine in machines.machines for folder in machine.folders}:
        if (group / "cpu.shares").exists():  # its quotas, also on a busy host
            (group / "cpu.shares").write_text(str(24 * 1024))
    bench = Bench(machines, tmp_path / "bench")
    width, batch = (512, 128) if rate else (256, 512)
    script = SCRIPT.replace('FOLDER")', f'{folder}")')
    script = script.replace("WIDTH", str(width)).replace("BATCH", str(batch))
    (bench.project / "train.py").write_text(script)
    words = ["--pool", str(bench.pool), "--machines", "all", "--strategy", "allreduce:shares=equal"]
    try:
        with way(machines, folder):
            running = bench.start("run", "train.py", *words)
            until(lambda: len(_steps(bench)) > 20, 200.0)
            time.sleep(SECONDS)
            moment = _steps(bench)[-1].ended
        time.sleep(SECONDS)
        running.signal(signal.SIGINT)
        ended = running.end(60.0)
    finally:
        bench.close()
    found = bench.summary()["straggler"]
    assert (found["machine"], found["cause"]) == ("m2", cause), json.dumps(found)
    assert f"Why: {cause} (" in ended.words
    steps = _steps(bench)
    later = [step for step in steps if step.began > moment][-(len(steps) // 4) :]
    usual = (later[-1].began - later[0].began) / (len(later) - 1)
    gains = (steps[-1].began - steps[3].began) / (len(steps) - 4) / usual - 1.0
    print(f"{cause}: stated {found['gain']:.2f}, gained {gains:.2f}")
    assert 1.0 + found["gain"] == pytest.approx(1.0 + gains, rel=TOLERANCE)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", ["equal shares", "shares by speed"])
def test_of_alike_machines_none_is_named(scenario: str, lab: MakeLab, tmp_path: Path) -> None:
    machines = lab(3, cpu=str(QUOTA), memory=MEMORY, share=[tmp_path])
    bench = Bench(machines, tmp_path / "bench")
    script = SCRIPT.replace('FOLDER")', f'{tmp_path}")').replace("epochs=1000", "epochs=16")
    (bench.project / "train.py").write_text(script.replace("WIDTH", "256").replace("BATCH", "512"))
    strategy = "allreduce:shares=equal" if scenario == "equal shares" else "allreduce"
    try:
        for _ in range(HEALTHY_RUNS):
            words = ["--pool", str(bench.pool), "--machines", "all", "--strategy", strategy]
            ended = bench.start("run", "train.py", *words).end(200.0)
            assert ended.code == 0, ended.words
            found = bench.summary().get("straggler")
            assert found is None, json.dumps(found)
    finally:
        bench.close()


def _steps(bench: Bench) -> list[WorkerStep]:
    """Of the first worker, as far as they have come."""
    with contextlib.suppress(ValueError, IndexError, OSError):
        return read_ranks(RunPaths(bench.latest()))[0].steps
    return []
