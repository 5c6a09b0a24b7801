"""The machine's figures once a second, told to the controller while it wants them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from phalanx.agent import counters, energy, facts, groups
from phalanx.agent.frames import field
from phalanx.agent.gpus import GpuReadings

PERIOD = 1.0
FIRST = 0.2
"""The first sample comes early, so that a run of half a second has one."""


class Meter:
    """Differences between successive readings; ``pids`` gives the workers' own."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        ids = facts.cpu_ids()
        quota = groups.cpu_quota()
        self._cores = min(len(ids), quota) if quota else float(len(ids))
        self._processor = counters.Processor(ids)
        self._workers, self._families = counters.Processes(), counters.Families()
        self._memory = groups.memory_group()
        self._gpus, self._joules = GpuReadings(), energy.Joules()
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
            **self._gpus.figures(),
        }

    def stop(self) -> None:
        self._gpus.stop()

    def _totals(self) -> dict[str, Any]:
        received, sent = counters.network_bytes()
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


class Sampler:
    """A thread that tells ``sample``; its errors never harm the run."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PERIOD)

    def _run(self) -> None:
        meter: Meter | None = None
        try:
            meter = Meter(lambda: list(self._agent.workers.pids.values()))
            wait = FIRST
            while not self._stop.wait(wait):
                self._agent.tell("sample", **meter.read())
                wait = PERIOD
        except Exception:  # the machine goes on without figures
            return
        finally:
            if meter is not None:
                meter.stop()


def sample(agent: Any, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Begin to tell, or end it; doing so twice does no harm."""
    on = field(request, "on", bool)
    sampler = getattr(agent, "sampler", None)
    if sampler is not None and not on:
        agent.sampler = None
        sampler.stop()
    elif sampler is None and on:
        agent.sampler = Sampler(agent)
    return {}


HANDLERS = {"sample": sample}
SLOW = ("sample",)
