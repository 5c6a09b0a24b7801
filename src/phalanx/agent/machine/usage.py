"""The usage of the machine and its workers, as rates between readings of counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from phalanx.agent.machine import control_groups as groups
from phalanx.agent.machine import counters, facts
from phalanx.agent.machine.frozen import FrozenWorkers
from phalanx.agent.machine.gpus import GpuReadings


class UsageMeter:
    """Reads the usage since the last reading; ``pids`` gives the processes of the workers.

    With ``loopback``, bytes that the machine sends to itself count too.
    """

    def __init__(self, pids: Callable[[], list[int]], *, loopback: bool = False) -> None:
        self._pids, self._loopback = pids, loopback
        ids = facts.cpu_ids()
        quota = groups.cpu_quota()
        self._cores = min(len(ids), quota) if quota else float(len(ids))
        self._processor = counters.Processor(ids)
        self._workers, self._families = counters.Processes(), counters.Families()
        self._frozen = FrozenWorkers()
        self._memory = groups.memory_group()
        self._gpus, self._joules = GpuReadings(), counters.Joules()
        self._before = self._totals()

    def read(self) -> dict[str, Any]:
        now, before = self._totals(), self._before
        self._before = now
        seconds = max(now["time"] - before["time"], 1e-6)

        def rate(name: str) -> float:
            return float(max(0.0, now[name] - before[name]) / seconds)

        return {
            "time": now["time"],
            "cpu_percent": min(100.0, 100 * rate("cpu") / self._cores),
            "cpu_source": self._processor.source,
            "cores": self._cores,
            "memory_bytes": self._memory_used(),
            "network_received": now["received"],
            "network_sent": now["sent"],
            "network_bytes_per_second": rate("received") + rate("sent"),
            "disk_read": now["read"],
            "disk_written": now["written"],
            "disk_bytes_per_second": None
            if now["read"] is None or before["read"] is None
            else rate("read") + rate("written"),
            "workers_cpu_percent": 100 * rate("workers"),
            "workers_memory_bytes": now["workers_memory"],
            "joules": now["joules"],
            "cpu_watts": None if now["joules"] is None else rate("joules"),
            "frozen": self._frozen.among(self._pids()),
            **self._gpus.figures(),
        }

    def close(self) -> None:
        self._gpus.stop()

    def _totals(self) -> dict[str, Any]:
        received, sent = counters.network_bytes(self._loopback)
        read, written = counters.disk_bytes() or (None, None)
        workers, memory = self._workers.use(self._families.of(self._pids()))
        return {
            "time": time.monotonic(),
            "cpu": self._processor.seconds(),
            "received": received,
            "sent": sent,
            "read": read,
            "written": written,
            "workers": workers,
            "workers_memory": memory,
            "joules": self._joules.read(),
        }

    def _memory_used(self) -> int:
        if self._memory is not None:
            return groups.memory_used(self._memory) or 0
        known = facts.meminfo()
        return known.get("MemTotal", 0) - known.get("MemAvailable", 0)
