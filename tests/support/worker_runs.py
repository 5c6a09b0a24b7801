"""Trainings by ``phalanx worker`` on the machines of a lab: real processes, real links."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commands import PHALANX

from phalanx.lab.lab import Lab

REPOSITORY = Path(__file__).resolve().parents[2]
PORT = 9900
LIMIT = 150.0


@dataclass
class Worker:
    """One process, as this host sees it."""

    machine: str
    process: subprocess.Popen[bytes]
    log: Path
    serves: bool = False

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass
class Workers:
    """What was started; as a context manager it leaves no process behind."""

    folder: Path
    each: list[Worker] = field(default_factory=list)

    def start(self, lab: Lab, machine: str, words: Sequence[str], env: dict[str, str]) -> None:
        """One more, in a machine; what it says is in a log."""
        log = self.folder / f"{len(self.each)}.{machine}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                lab.command(machine, words), env=env, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.each.append(Worker(machine, process, log))

    def on(self, machine: str) -> list[Worker]:
        return [worker for worker in self.each if worker.machine == machine]

    def wait(self, limit: float = LIMIT, among: Sequence[Worker] | None = None) -> list[int | None]:
        """Exit codes, in the order of the start; ``None`` for one that did not end in time."""
        end, codes = time.monotonic() + limit, []
        for worker in self.each if among is None else among:
            try:
                codes.append(worker.process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def finish(self, limit: float = LIMIT) -> Workers:
        """All end well."""
        codes = self.wait(limit)
        assert codes == [0] * len(codes), f"{codes}\n{self.words()}"
        return self

    def words(self) -> str:
        """What each said, for messages."""
        return "\n".join(f"--- {w.log.name}\n{w.said[-2000:]}" for w in self.each)

    @property
    def runs(self) -> list[Path]:
        """Folders of the runs, newest last."""
        return sorted(path for path in (self.folder / "runs").glob("[!.]*") if path.is_dir())

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.each:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait(10.0)


def start_workers(
    lab: Lab,
    folder: Path,
    words: Sequence[str],
    *,
    on: Sequence[str],
    serving: Sequence[str] = (),
    **variables: str,
) -> Workers:
    """``phalanx worker WORDS`` on each machine of ``on`` (a name may come again), in that order.

    Machines of ``serving`` run a parameter server each. ``folder`` must be shared with the lab.
    """
    folder.mkdir(parents=True, exist_ok=True)
    common = environment(lab, folder, on[0], len(on) + len(serving)) | variables
    started = Workers(folder)
    for number, machine in enumerate([*on, *serving]):
        mine = words if number < len(on) else ["--serve"]
        given = {**common, "PHALANX_PROCESS": str(number)}
        started.start(lab, machine, [*PHALANX, "worker", *mine], given)
        started.each[-1].serves = number >= len(on)
    return started


def environment(lab: Lab, folder: Path, first: str, processes: int) -> dict[str, str]:
    """What every process of a run by hand needs."""
    return {
        **os.environ,
        "PHALANX_KEY_FILE": str(make_key(folder)),
        "PHALANX_POOL": str(make_pool(lab, folder)),
        "PHALANX_MEET": f"{lab.machine(first).address}:{PORT}",
        "PHALANX_PROCESSES": str(processes),
        "PHALANX_RUNS": str(folder / "runs"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }


def make_key(folder: Path) -> Path:
    key = folder / "run.key"
    if not key.exists():
        key.touch(0o600)
        key.write_text(os.urandom(32).hex())
    return key


def make_pool(lab: Lab, folder: Path) -> Path:
    pool = folder / "lab.yaml"
    if not pool.exists():
        lab.write_blueprint(pool)
    return pool
