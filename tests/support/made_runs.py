"""Writes the folder of a run that never happened, from the real structures, with known numbers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.run_folder.trust import write_launch
from phalanx.core.settings import RunSettings
from phalanx.core.spec import parse_spec
from phalanx.observe.events import event_types as ev

WALL = 1_700_000_000.0
CLOCK = 1000.0


@dataclass
class Made:
    """How the made run goes."""

    strategy: str = "allreduce"
    workers: int = 2
    epochs: int = 3
    steps: int = 6
    batch: int = 128
    compute: float = 0.004
    slow: dict[int, float] = field(default_factory=dict)
    accuracy: float = 0.97
    seed: int = 0
    status: str | None = "done"
    command: list[str] = field(default_factory=lambda: ["phalanx", "run", "train.py"])
    script: str = "train.py"
    logged: dict[str, float] = field(default_factory=dict)
    started: float = WALL
    noise: float = 0.15
    settings: dict[str, Any] = field(default_factory=dict)
    resumes: str | None = None
    machines: tuple[str, ...] = ("here",)
    """Workers are dealt out to them in turn."""
    gpus: tuple[str, ...] = ()
    """Those of them that have one, and count their power."""

    def place(self, rank: int) -> str:
        return self.machines[rank % len(self.machines)]


def write_run(home: Path, name: str, **changes: Any) -> RunPaths:
    """The folder of one made run, without a summary."""
    made = Made(**changes)
    paths = RunPaths(home / name)
    paths.make()
    _write_plan(paths, made)
    _write_launch(paths, made)
    _Story(paths, made).write()
    return paths


def write_study(home: Path, name: str, runs: list[str], **changes: Any) -> RunPaths:
    """A study of runs that lie beside it."""
    paths = RunPaths(home / name)
    paths.folder.mkdir(parents=True)
    record = {
        "study": name,
        "command": ["phalanx", "compare", "train.py"],
        "runs": runs,
        "script": "train.py",
        "started_wall": WALL,
        "repeat": 1,
    }
    paths.study.write_bytes(msgspec.json.encode(record | changes))
    return paths


def _write_plan(paths: RunPaths, made: Made) -> None:
    machines = []
    for name in made.machines:
        slots = [
            {"rank": rank, "cpus": [rank], "threads": 1, "device": "cpu"}
            for rank in range(made.workers)
            if made.place(rank) == name
        ]
        machines.append({"name": name, "host": name, "cores": 2, "gpus": 0, "slots": slots})
    plan = {
        "strategy": made.strategy,
        "selection": "all",
        "machines": machines,
        "workers": made.workers,
        "batch": made.batch,
        "predicted": {"seconds": None},
        "reasons": ["made for a test"],
    }
    paths.plan.write_bytes(msgspec.json.encode(plan))


def _write_launch(paths: RunPaths, made: Made) -> None:
    worker = {"argv": ["python", made.script], "cpus": [], "threads": 1}
    workers = [
        worker
        | {"rank": rank, "env": {"PHALANX_RANK": str(rank)}, "log": f"logs/rank-{rank}.log"}
        | {"machine": made.place(rank)}
        for rank in range(made.workers)
    ]
    launch = {
        "run": paths.id,
        "command": made.command,
        "script": made.script,
        "arguments": [],
        "launcher": "local",
        "settings": RunSettings(
            strategy=made.strategy, batch=made.batch, seed=made.seed, **made.settings
        ),
        "resumes": made.resumes,
        "started_wall": made.started,
        "versions": {"python": "3.11.2", "phalanx": "0.1.0"},
        "workers": workers,
    }
    write_launch(paths, msgspec.json.encode(launch).decode())


class _Story:
    """Steps of every rank in order, as a strategy of this kind would have gone."""

    def __init__(self, paths: RunPaths, made: Made) -> None:
        self.paths, self.made = paths, made
        self.random = random.Random(f"{made.strategy}-{made.seed}-{paths.id}")
        self.clock = [CLOCK + 2.0 + 0.01 * rank for rank in range(made.workers)]
        self.began = list(self.clock)
        self.lines: list[list[ev.Event]] = [[] for _ in range(made.workers)]
        self.phases = parse_spec(made.strategy).phases
        self.done = [0] * made.workers
        self.phase = 0

    def write(self) -> None:
        made = self.made
        for rank in range(made.workers):
            self._join(rank)
        for epoch in range(made.epochs):
            self._switch(epoch)
            self._epoch(epoch)
        for rank in range(made.workers):
            self._end(rank)
            data = b"".join(ev.encode(event) for event in self.lines[rank])
            self.paths.events_of(rank).write_bytes(data)
        for name in made.machines:
            self._machine(name)

    def _join(self, rank: int) -> None:
        say = self.lines[rank].append
        say(ev.PhaseDone(time=CLOCK + 1.5, rank=rank, phase="start", seconds=1.5))
        checksums = {"digits.csv": "sha256:" + "ab" * 32}
        say(ev.Data(time=CLOCK + 1.6, rank=rank, name="digits", samples=1797, checksums=checksums))
        say(ev.PhaseDone(time=CLOCK + 1.7, rank=rank, phase="read", seconds=0.1))
        say(
            ev.Joined(
                time=CLOCK + 1.9,
                wall=WALL + 1.9,
                rank=rank,
                workers=self.made.workers,
                machine=self.made.place(rank),
                pid=4000 + rank,
                device="cpu",
                threads=1,
                precision="float32",
                strategy=self.made.strategy,
                parameters=266_610,
                seed=self.made.seed,
                versions={"torch": "2.13.0"},
                notes=["learning rate 0.05"],
            )
        )

        say(
            ev.Planned(
                time=CLOCK + 2.0,
                rank=rank,
                epochs=self.made.epochs,
                samples=self.made.batch * self.made.steps,
                batch=self.made.batch,
            )
        )

    def _switch(self, epoch: int) -> None:
        phase = self.phases[self.phase]
        share = phase.until.share if phase.until else None
        if share is None or epoch < share * self.made.epochs:
            return
        after = self.phases[self.phase + 1]
        self.phase += 1
        for rank, clock in enumerate(self.clock):
            self.lines[rank].append(
                ev.Switched(
                    time=clock,
                    rank=rank,
                    epoch=epoch,
                    at_epoch=float(epoch),
                    before=phase.label,
                    after=after.label,
                    pause=0.0008,
                )
            )

    def _epoch(self, epoch: int) -> None:
        made, lockstep = self.made, self.phases[self.phase].traits.lockstep
        start = list(self.clock)
        for rank, rows in enumerate(self._lockstep() if lockstep else self._free()):
            columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
            loss = self._loss(epoch)
            self.lines[rank].append(
                ev.Steps(rank=rank, epoch=epoch, first=self.done[rank], loss=[loss] * len(rows),
                         **columns)
            )  # fmt: skip
            self.done[rank] += len(rows)
            self.lines[rank].append(
                ev.EpochDone(
                    time=self.clock[rank],
                    rank=rank,
                    epoch=epoch,
                    seconds=self.clock[rank] - start[rank],
                    samples=sum(columns["samples"]),
                    train_loss=loss,
                    train_accuracy=min(0.999, self._accuracy(epoch) + 0.015),
                    rate=0.05,
                )
            )
        values = {
            "test_loss": self._loss(epoch) * 1.2,
            "test_accuracy": self._accuracy(epoch),
            **made.logged,
        }
        self.lines[0].append(ev.Logged(time=self.clock[0], rank=0, epoch=epoch, values=values))

    def _loss(self, epoch: int) -> float:
        return 0.06 + 2.2 * math.exp(-0.7 * (epoch + 1))

    def _accuracy(self, epoch: int) -> float:
        wobble = self.random.uniform(-0.002, 0.002) if self.made.noise else 0.0
        return self.made.accuracy * (1 - 0.75 * math.exp(-0.9 * (epoch + 1))) + wobble

    def _busy(self, rank: int) -> float:
        jitter = 1 + self.made.noise * self.random.random()
        return self.made.compute * jitter * self.made.slow.get(rank, 1.0)

    def _lockstep(self) -> list[list[tuple[Any, ...]]]:
        workers, share = self.made.workers, self.made.batch // self.made.workers
        alone = workers == 1
        rows: list[list[tuple[Any, ...]]] = [[] for _ in range(workers)]
        for _ in range(self.made.steps):
            start = list(self.clock)
            busy = [self._busy(rank) for rank in range(workers)]
            ready = [start[r] + 0.0002 + busy[r] + 0.0001 for r in range(workers)]
            for rank in range(workers):
                wait, reduce = max(ready) - ready[rank], 0.0 if alone else 0.0004
                rows[rank].append(
                    (start[rank], share, 0.0002, busy[rank], 0.0001, wait, reduce, 0.0003, 0.0, 0)
                )
                self.clock[rank] = max(ready) + reduce + 0.0003
        return rows

    def _free(self) -> list[list[tuple[Any, ...]]]:
        workers, share = self.made.workers, self.made.batch // self.made.workers
        rows: list[list[tuple[Any, ...]]] = [[] for _ in range(workers)]
        for _ in range(self.made.steps * workers):
            rank = min(range(workers), key=lambda r: self.clock[r])
            busy, lock = self._busy(rank), 0.0003 * self.random.random()
            stale = max(0, workers - 1 + self.random.choice([-1, 0, 0, 0, 0, 1]))
            row = (self.clock[rank], share, 0.0002, busy, 0.0002, lock, 0.0003, 0.0003, 0.0, stale)
            rows[rank].append(row)
            self.clock[rank] += sum(row[2:9])
        return rows

    def _end(self, rank: int) -> None:
        say, seconds = self.lines[rank].append, self.clock[rank] - self.began[rank]
        time = self.clock[rank] + 0.1
        say(ev.PhaseDone(time=time, rank=rank, phase="train", seconds=seconds))
        say(ev.PhaseDone(time=time, rank=rank, phase="evaluate", seconds=0.05))
        if rank == 0:
            say(ev.Saved(time=time, rank=0, path="model.safetensors", epoch=self.made.epochs - 1))
        if self.made.status:
            say(
                ev.Finished(
                    time=time,
                    rank=rank,
                    status=self.made.status,
                    bytes_sent=1_000_000,
                    peak_memory=300_000_000,
                )
            )

    def _machine(self, name: str) -> None:
        end = max(self.clock) + 0.2
        lines = []
        for second in range(int(end - CLOCK) + 2):
            busy = 1.5 < second < end - CLOCK
            lines.append(
                ev.MachineSample(
                    time=CLOCK + second,
                    cpu_percent=(cpu := (88 if busy else 35) + self.random.uniform(-6, 6)),
                    cpu_user=0.8 * cpu,
                    cpu_system=0.2 * cpu,
                    memory_before=2_000_000_000 if second == 0 else None,
                    memory_bytes=int(2.1e9 + 6e8 * min(1.0, second / 3)),
                    network_bytes_per_second=2e4 * self.random.random(),
                    workers_cpu_percent=100.0 * self.made.workers,
                    workers_memory_bytes=int(6e8 * min(1.0, second / 3)),
                    **(self._own_figures(name, second, busy) if name != "here" else {}),
                )
            )
        data = b"\n".join(msgspec.json.encode(line) for line in lines) + b"\n"
        self.paths.machine(name).write_bytes(data)

    def _own_figures(self, name: str, second: int, busy: bool) -> dict[str, Any]:
        """What an agent on the machine tells besides."""
        figures: dict[str, Any] = {
            "network_sent": 5_000_000 + 2_000_000 * second,
            "network_received": 7_000_000 + 1_000_000 * second,
            "network_received_per_second": 1e6,
            "network_sent_per_second": 2e6,
            "cpu_wait": 2.0 + self.random.random() if busy else 0.0,
            "cpu_steal": 0.0,
            "pressure_cpu": 20.0 * busy + self.random.random(),
            "disk_bytes_per_second": 2e7 if second < 3 else 1e5 * self.random.random(),
        }
        if name in self.made.gpus:
            figures |= {
                "gpu_percent": 70.0 + self.random.uniform(-15, 15) if busy else 0.0,
                "gpu_memory_bytes": int(3.1e9) if busy else int(2e8),
                "watts": 180.0 + self.random.uniform(-25, 25) if busy else 60.0,
            }
        return figures


_COLUMNS = (
    "began", "samples", "input", "compute", "send", "wait", "reduce", "update", "settle",
    "staleness",
)  # fmt: skip
