"""The machine's figures once a second, told to the controller while it wants them.

Those of a detached run are kept as well, so that a controller that comes back has them all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.agent.frames import field
from phalanx.agent.machine import control_groups as groups
from phalanx.agent.machine import counters, energy, facts
from phalanx.agent.machine.gpus import GpuReadings
from phalanx.agent.machine.kept_samples import KeptSamples

if TYPE_CHECKING:
    from phalanx.agent.wire import Connection

PERIOD = 1.0
FIRST = 0.2
"""The first sample comes early, so that a run of half a second has one."""
ALONE_PARTS = 3600


def pause(alone: float) -> float:
    """Seconds from one sample to the next when nobody has heard any for so long.

    A fixed part of that time: once a second in the first hour, always fine enough to draw the
    whole, and a week is ten megabytes. What counters tell (processor time, bytes, joules) is told
    of all the time since the sample before, so that fewer of them leave nothing out.
    """
    return max(PERIOD, alone / ALONE_PARTS)


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

    def __init__(self, agent: Any, kept: KeptSamples | None) -> None:
        self._agent, self._kept = agent, kept
        self._hearer: Connection | None = None
        self._heard = time.monotonic()
        self._telling = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def tell_to(self, hearer: Connection | None, after: float | None) -> None:
        """From now on; first what was kept and is later than ``after``."""
        with self._telling:  # a new sample waits, or it would come before older ones
            if hearer is not None and after is not None and self._kept is not None:
                _tell_all(hearer, self._kept, after)
            self._hearer, self._heard = hearer, time.monotonic()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PERIOD)

    def _run(self) -> None:
        meter: Meter | None = None
        try:
            meter = Meter(lambda: list(self._agent.workers.pids.values()))
            self._sample(meter)
        except Exception:  # the machine goes on without figures
            return
        finally:
            if meter is not None:
                meter.stop()

    def _sample(self, meter: Meter) -> None:
        wait, read = FIRST, float("-inf")
        while not self._stop.wait(wait):
            wait, now, over = PERIOD, time.monotonic(), self._is_over()
            if over or now - read > pause(now - self._heard) - PERIOD / 2:
                read = now
                self._pass_on(meter.read())
            if over:
                return

    def _is_over(self) -> bool:
        """A detached agent waits for days after its workers: that time is not the run's."""
        workers = self._agent.workers
        return bool(self._kept is not None and workers.codes and not workers.pids)

    def _pass_on(self, figures: dict[str, Any]) -> None:
        with self._telling:
            if self._kept is not None:  # heard or not: what is on its way may never arrive
                self._kept.add(figures)
            if self._hearer is not None and self._hearer is self._agent.connection:
                self._heard = time.monotonic()
                self._hearer.send({**figures, "tell": "sample"})


def _tell_all(hearer: Connection, kept: KeptSamples, after: float) -> None:
    for figures in kept.later(after):
        hearer.send({**figures, "tell": "sample"})


def sample(agent: Any, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Begin to tell, or end it; doing so twice does no harm.

    ``keep``: in the run's folder too. ``after``: of what is there, first all that is later.
    """
    on, after = field(request, "on", bool), _moment(request)
    sampler = getattr(agent, "sampler", None)
    if on:
        if sampler is None:
            sampler = agent.sampler = Sampler(agent, _kept(agent, request))
        sampler.tell_to(agent.connection, after)
    elif sampler is not None:
        agent.sampler = None
        sampler.stop()
    return {}


def kept_samples(agent: Any, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Tell what an agent that is gone has kept."""
    after, hearer = _moment(request), agent.connection
    if hearer is not None and agent.run_folder is not None and after is not None:
        _tell_all(hearer, KeptSamples(agent.run_folder), after)
    return {}


def _moment(request: dict[str, Any]) -> float | None:
    given = request.get("after") is not None
    return float(field(request, "after", (int, float))) if given else None


def _kept(agent: Any, request: dict[str, Any]) -> KeptSamples | None:
    if not field(request, "keep", bool, False) or agent.run_folder is None:
        return None
    kept = KeptSamples(agent.run_folder)
    kept.begin()
    return kept


HANDLERS = {"sample": sample, "kept_samples": kept_samples}
SLOW = ("sample", "kept_samples")
