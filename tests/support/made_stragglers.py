"""Runs in lockstep that never were: what each worker takes, and what its machine's figures are."""

from __future__ import annotations

import random
from typing import Any

from made_events import joined, steps

from phalanx.observe.events.event_types import LinksUsed, MachineSample
from phalanx.observe.events.timeline import RankLog

BATCH = 40


def made_run(
    extra: dict[int, dict[str, float]] | None = None,
    *,
    workers: int = 3,
    count: int = 400,
    noise: float = 0.15,
    seed: int = 0,
    late: tuple[float, float] = (0.0, 1.0),
    machines: bool = True,
) -> list[RankLog]:
    """Steps of 10 ms of input, 40 ms of compute, and 20 ms of communication, with noise.

    ``extra``: by rank, seconds of ``input`` or ``compute`` more in each step of the part ``late``.
    """
    rng = random.Random(seed)
    columns: list[dict[str, list[float]]] = [
        {name: [] for name in ("began", "input", "compute", "wait", "reduce")}
        for _ in range(workers)
    ]
    now = 100.0
    for number in range(count):
        busy = []
        for rank in range(workers):
            parts = {"input": 0.01, "compute": 0.04}
            if late[0] * count <= number < late[1] * count:
                for name, seconds in (extra or {}).get(rank, {}).items():
                    parts[name] += seconds
            busy.append({n: s * rng.uniform(1 - noise, 1 + noise) for n, s in parts.items()})
        ready = [sum(parts.values()) for parts in busy]
        for rank, parts in enumerate(busy):
            row = {"began": now, **parts, "wait": max(ready) - ready[rank], "reduce": 0.02}
            for name, value in row.items():
                columns[rank][name].append(value)
        now += max(ready) + 0.02
    logs = []
    for rank, own in enumerate(columns):
        log = RankLog(rank)
        log.add(joined(rank, machine=f"m{rank + 1}" if machines else "here", workers=workers))
        log.add(steps(rank, count, samples=BATCH, **own))
        logs.append(log)
    return logs


def figures(logs: list[RankLog], machine: str, **given: float | str) -> list[MachineSample]:
    """Readings of one machine, a second apart while the run trains."""
    began, ended = logs[0].steps[0].began, logs[0].steps[-1].ended
    fields: dict[str, Any] = {
        "cpu_percent": 60.0, "workers_cpu_percent": 100.0, "cores": 2.0, "memory_bytes": 1,
        "network_bytes_per_second": 0.0, "workers_memory_bytes": 1, "throttled_percent": 0.0,
        "major_faults_per_second": 0.0, "pressure_cpu": 1.0, "cpu_steal": 0.0,
    }  # fmt: skip
    count = int(ended - began)
    return [MachineSample(time=began + at, **{**fields, **given}) for at in range(1, count)]


def links(rank: int, takes: dict[str, float], *, count: int, periods: int) -> list[LinksUsed]:
    """What a worker has sent: in each five seconds so many bytes, which took these seconds."""
    return [
        LinksUsed(
            time=100.0 + 5 * place,
            rank=rank,
            peers={peer: (count * place, seconds * place) for peer, seconds in takes.items()},
        )
        for place in range(1, periods + 1)
    ]
