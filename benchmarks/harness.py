"""Worker processes, alternated blocks, medians: what all benchmarks share."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from phalanx.core import settings
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.sync.arena import memfd

LIMIT = 600.0
NOTHING: Mapping[str, str] = MappingProxyType({})
ROOT = Path(__file__).parents[1]


def report(name: str, **figures: object) -> None:
    """One figure, one line."""
    print(json.dumps({"figure": name, **figures}), flush=True)


def spread(values: list[float]) -> dict[str, float]:
    """Median and the middle half of the values."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return {"median": statistics.median(values), "low": low, "high": high, "blocks": len(values)}


def alternate(blocks: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each block once per round, in turn; the order is reversed every other round."""
    found: dict[str, list[float]] = {name: [] for name in blocks}
    for block in blocks.values():
        block()
    for number in range(rounds):
        names = list(blocks) if number % 2 == 0 else list(reversed(list(blocks)))
        for name in names:
            found[name].append(blocks[name]())
    return found


def start_workers(
    module: str,
    workers: int,
    *arguments: str,
    pin: bool = True,
    limit: float = LIMIT,
    variables: Mapping[str, str] = NOTHING,
) -> dict[str, Any]:
    """``python -m benchmarks.MODULE`` as every rank; returns what rank 0 printed as JSON."""
    descriptor = memfd.create(workers)
    with tempfile.TemporaryDirectory() as folder:
        RunPaths(Path(folder)).make()
        output = Path(folder) / "rank-0.json"
        processes = []
        for rank in range(workers):
            environment = {
                **os.environ,
                **variables,
                settings.RANK: str(rank),
                settings.WORKERS: str(workers),
                settings.RUN_FOLDER: folder,
                settings.ARENA: str(descriptor),
                settings.SETTINGS: "{}",
                "OMP_NUM_THREADS": "1",
                "BENCH_OUTPUT": str(output),
                "BENCH_RENDEZVOUS": str(Path(folder) / "rendezvous"),
            }
            cpus = sorted(os.sched_getaffinity(0))
            command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
            if pin:
                command = ["taskset", "-c", str(cpus[rank % len(cpus)]), *command]
            processes.append(subprocess.Popen(command, env=environment, pass_fds=[descriptor]))
        os.close(descriptor)
        try:
            codes = _await(processes, time.monotonic() + limit)
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise SystemExit(f"benchmarks.{module}: a worker failed ({codes})")
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def _await(processes: list[subprocess.Popen[bytes]], end: float) -> list[int]:
    """Exit codes; the first failure ends the waiting, because the others would wait for it."""
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes) or any(codes):
            return [-1 if code is None else code for code in codes]
        time.sleep(0.05)
    raise SystemExit("the workers took too long")


def phalanx_command(*words: str) -> list[str]:
    """``phalanx WORDS``, also where only the package is there and not its console script."""
    return [sys.executable, "-c", "from phalanx.cli.entry import main; main()", *words]


def give(result: Mapping[str, object]) -> None:
    """Called by rank 0 of a worker module."""
    if os.environ[settings.RANK] == "0":
        Path(os.environ["BENCH_OUTPUT"]).write_text(json.dumps(result))
