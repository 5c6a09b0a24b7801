"""The usage of the machine and its workers, as rates between readings of counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from phalanx.agent.machine import control_groups as groups
from phalanx.agent.machine import counters, facts
from phalanx.agent.machine.frozen import FrozenWorkers
from phalanx.agent.machine.gpus import GpuReadings

COUNTERS = ("network_received", "network_sent", "disk_read", "disk_written", "joules")
KINDS_OF_TIME = ("user", "system", "wait", "steal")
FLOWS = (*COUNTERS[:4], "swap_bytes", "major_faults", "retransmits", "segments")


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
        self._pressures = groups.pressure_files()
        self._gpus, self._joules = GpuReadings(), counters.Joules()
        self._before = self._totals()
        self._at_first = {
            "memory_before": self._before.get("used"),
            "memory_total": facts.memory(),
            "load_before": counters.load() if self._processor.source == "kernel" else None,
        }

    def read(self) -> dict[str, Any]:
        now, before = self._totals(), self._before
        self._before = now
        seconds = max(now["time"] - before["time"], 1e-6)

        def rate(name: str, times: float = 1.0) -> float | None:
            """The counter's growth a second; ``None`` if it is not known."""
            last, first = now.get(name), before.get(name)
            if last is None or first is None:
                return None
            return float(times * max(0.0, last - first) / seconds)

        at_first, self._at_first = self._at_first, {}
        of_cores = 100 / self._cores
        kinds = {f"cpu_{kind}": rate(kind, of_cores) for kind in KINDS_OF_TIME}
        flows = {f"{name}_per_second": rate(name) for name in FLOWS}
        waits = ((name, rate(name, 100)) for name in groups.PRESSURES)
        pressures = {f"pressure_{n}": None if w is None else min(100.0, w) for n, w in waits}
        return {
            "time": now["time"],
            "cpu_percent": min(100.0, rate("busy", of_cores) or 0.0),
            "cpu_source": self._processor.source,
            "cores": self._cores,
            "memory_bytes": now.get("used", 0),
            "memory_cached": now.get("cached"),
            "swap_bytes": now.get("swap"),
            "network_bytes_per_second": rate("network"),
            "disk_bytes_per_second": rate("disk"),
            "throttled_percent": rate("throttled", 100),
            "workers_cpu_percent": rate("workers", 100),
            "workers_memory_bytes": now["workers_memory"],
            "frozen": now["frozen"],
            "cpu_watts": rate("joules"),
            **{name: now[name] for name in COUNTERS},
            **at_first,
            **kinds,
            **flows,
            **pressures,
            **self._gpus.figures(),
        }

    def close(self) -> None:
        self._gpus.stop()

    def _totals(self) -> dict[str, Any]:
        received, sent = counters.network_bytes(self._loopback)
        read, written = counters.disk_bytes() or (None, None)
        pids = self._pids()
        workers = self._workers.use(self._families.of(pids))
        return {
            "time": time.monotonic(),
            **self._processor.seconds(),
            **counters.memory(self._memory),
            **counters.segments(),
            **{name: groups.pressure_seconds(path) for name, path in self._pressures.items()},
            "network": received + sent,
            "disk": None if read is None or written is None else read + written,
            "network_received": received,
            "network_sent": sent,
            "disk_read": read,
            "disk_written": written,
            "frozen": self._frozen.among(pids),
            "workers": workers.seconds,
            "workers_memory": workers.memory,
            "joules": self._joules.read(),
        }
