"""Workers as Phalanx's own launcher starts them on several machines: each with its own folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from worker_runs import Worker, Workers

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.lab.lab import Lab

PORT = 9911
BOOTSTRAP = [sys.executable, "-P", "-m", "phalanx.launch.worker.bootstrap"]


def folder_on(folder: Path, machine: str) -> RunPaths:
    """The run as ``machine`` has it: nothing is shared."""
    return RunPaths(folder / machine / "run")


def start_own(
    lab: Lab,
    folder: Path,
    words: Sequence[str],
    *,
    on: Sequence[str],
    variables: dict[str, str] | None = None,
    **chosen: Any,
) -> Workers:
    """A script with its arguments on each machine of ``on`` (a name may come again)."""
    settings = RunSettings(**{"checkpoint_epochs": 1, **chosen}).to_json()
    started, key = Workers(folder), os.urandom(32).hex()
    for rank, machine in enumerate(on):
        paths = folder_on(folder, machine)
        paths.make()
        own = {
            "PHALANX_RANK": str(rank),
            "PHALANX_WORKERS": str(len(on)),
            "PHALANX_RUN": str(paths.folder),
            "PHALANX_MACHINE": machine,
            "PHALANX_SETTINGS": settings,
            "PHALANX_DEVICE": "cpu",
            "PHALANX_STARTED": repr(time.monotonic()),
            "PHALANX_MEET": f"{lab.machine(on[0]).address}:{PORT}",
            "PHALANX_ADDRESS": lab.machine(machine).address,
            "PHALANX_KEY": key,
            "PHALANX_GRACE": "20",
            "OMP_NUM_THREADS": "1",
        }
        log = paths.log_of(rank)
        with log.open("wb") as output:
            process = subprocess.Popen(
                lab.command(machine, [*BOOTSTRAP, *words]),
                env={**os.environ, **own, **(variables or {})},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started.each.append(Worker(machine, process, log))
    return started


def tell(worker: Worker, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to the script itself: a lab's own programs stand before it."""
    found = _with_descendants(worker.process.pid)
    scripts = [p for p in found if _is_script(Path(f"/proc/{p}/cmdline").read_bytes())]
    os.kill(scripts[-1], number)


def _is_script(command: bytes) -> bool:
    return b"phalanx.launch.worker.bootstrap" in command


def _with_descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in _with_descendants(int(child)))]


def until(done: Callable[[], bool], workers: Workers, limit: float = 90.0, lost: int = 0) -> None:
    """Wait for ``done``, while all workers but ``lost`` ones run."""
    end = time.monotonic() + limit
    while not done():
        codes = [worker.process.poll() for worker in workers.each]
        assert time.monotonic() < end and codes.count(None) >= len(codes) - lost, workers.words()
        time.sleep(0.05)
