"""Reads the kernel's counters of processor time, networks, disks and processes; and processors' own
counters of energy (RAPL), if this user may read them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.machine import control_groups as groups
from phalanx.agent.machine.control_groups import PAGE, TICKS, read_number, read_text
from phalanx.agent.machine.facts import meminfo
from phalanx.agent.system import every_process, stat_fields

SECTOR = 512
NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
SCAN_SECONDS = 5.0
"""Seconds between scans of the whole process table, the most expensive of all readings."""


def network_bytes(loopback: bool = False) -> tuple[int, int]:
    """Bytes received and sent by all interfaces; loopback only if asked for."""
    received = sent = 0
    for line in read_text("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if (loopback or name.strip() != "lo") and len(fields) >= 9:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def load() -> float | None:
    """Processes that ran or wanted to, on average over the last minute."""
    first = read_text("/proc/loadavg").partition(" ")[0]
    return float(first) if first else None


def segments() -> dict[str, int]:
    """TCP segments sent, and sent again."""
    rows = [line.split() for line in read_text("/proc/net/snmp").splitlines() if line[:4] == "Tcp:"]
    names, values = rows if len(rows) == 2 else ([], [])
    wanted = (("segments", "OutSegs"), ("retransmits", "RetransSegs"))
    return {ours: int(values[names.index(name)]) for ours, name in wanted if name in names}


def disk_bytes() -> tuple[int, int] | None:
    """Bytes read from and written to all disks; partitions are left out, as they are in them."""
    text = read_text("/proc/diskstats")
    if not text:
        return None
    read = written = 0
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 10 and is_disk(fields[2]):
            read, written = read + int(fields[5]), written + int(fields[9])
    return read * SECTOR, written * SECTOR


@lru_cache(maxsize=1024)
def is_disk(name: str) -> bool:
    return not name.startswith(NOT_DISKS) and Path("/sys/block", name.replace("/", "!")).exists()


def memory(group: str | None) -> dict[str, int]:
    """Bytes of memory and swap in use and cached, bytes swapped and major page faults so far; of
    the group, or of the whole machine."""
    if group is not None:
        return groups.memory_figures(group)
    known, events = meminfo(), groups.numbers_in("/proc/vmstat")
    found = {
        "used": known.get("MemTotal", 0) - known.get("MemAvailable", 0),
        "cached": known.get("Cached", 0) + known.get("Buffers", 0),
        "swap": known.get("SwapTotal", 0) - known.get("SwapFree", 0),
    }
    if "pgmajfault" in events:
        found["major_faults"] = events["pgmajfault"]
        found["swap_bytes"] = (events.get("pswpin", 0) + events.get("pswpout", 0)) * PAGE
    return found


class Processor:
    """Processor time of this machine, in seconds that only differences of mean anything."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._names = {f"cpu{number}" for number in ids}
        self._group, self._limited = groups.cpu_group(), groups.limited_group()
        if self._group is not None:
            self.source = "cgroup"
        elif groups.in_container():
            self.source = "processes"
        else:
            self.source = "kernel"
        self._table = Processes()

    def seconds(self) -> dict[str, float]:
        """Seconds of all cores: used (``busy``) by programs (``user``), the kernel (``system``) and
        a host (``steal``); waiting for disks; and refused to us by a quota."""
        if self.source == "processes":
            use = self._table.use(every_process())
            return {"busy": use.seconds, "user": use.seconds - use.system, "system": use.system}
        if self._group is None:
            return kinds_of_time(read_text("/proc/stat"), self._names)
        found = groups.cpu_figures(self._group)
        if self._limited not in (None, self._group):  # in version 1, perhaps of another tree
            found.update(groups.cpu_figures(str(self._limited)))
        return found


def kinds_of_time(text: str, names: Iterable[str]) -> dict[str, float]:
    """Seconds of these cores by kind, from ``/proc/stat``; ``user`` includes guests."""
    ticks = [0] * 8
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break
        name, *fields = line.split()
        if name in names and len(fields) >= 8:
            ticks = [total + int(fields[place]) for place, total in enumerate(ticks)]
    user, nice, system, _idle, wait, hard, soft, steal = (each / TICKS for each in ticks)
    found = {"user": user + nice, "system": system + hard + soft, "wait": wait, "steal": steal}
    return {**found, "busy": found["user"] + found["system"] + steal}


class Use(NamedTuple):
    """Processor time of some processes, the kernel's part of it, and their memory."""

    seconds: float
    system: float
    memory: int


class Processes:
    """Processor time and memory of some processes.

    When a process ends, its time counts as that of the parent that waits for it, so the sum goes
    on. If none of these processes waits for it, the kernel's sum falls, and ours stays the same.
    """

    def __init__(self) -> None:
        self._last = self._total = Use(0.0, 0.0, 0)

    def use(self, pids: Iterable[int]) -> Use:
        """Processor seconds of the processes so far, and bytes of memory now."""
        found = [use for use in map(_times, pids) if use is not None]
        seconds, system, memory = (sum(use[place] for use in found) for place in range(3))
        now = Use(seconds, system, int(memory))
        gained = max(0.0, now.seconds - self._last.seconds)
        system = min(gained, max(0.0, now.system - self._last.system))
        total = self._total
        self._total = Use(total.seconds + gained, total.system + system, now.memory)
        self._last = now
        return self._total


def _times(pid: int) -> Use | None:
    fields = stat_fields(pid)
    if len(fields) < 22:
        return None
    user, system, ended_user, ended_system = (int(each) / TICKS for each in fields[11:15])
    kernel = system + ended_system
    return Use(user + ended_user + kernel, kernel, int(fields[21]) * PAGE)


class Families:
    """The processes of the workers' groups; new ones are found every few seconds."""

    def __init__(self) -> None:
        self._found: set[int] = set()
        self._leaders: frozenset[int] = frozenset()
        self._scan_at = 0.0

    def of(self, leaders: Iterable[int]) -> list[int]:
        chosen = frozenset(leaders)
        now = time.monotonic()
        if chosen and (chosen != self._leaders or now >= self._scan_at):
            groups_wanted = {str(pid) for pid in chosen}
            self._found = {
                pid
                for pid in every_process()
                if (fields := stat_fields(pid))[2:3] and fields[2] in groups_wanted
            }
            self._leaders, self._scan_at = chosen, now + SCAN_SECONDS
        return sorted(self._found | chosen) if chosen else []


POWERCAP = "/sys/class/powercap"


def zones(root: str = POWERCAP) -> list[str]:
    """The RAPL zones that do not overlap: processor packages, and the memory beside them."""
    try:
        names = sorted(entry.name for entry in Path(root).iterdir())
    except OSError:
        return []
    found = []
    for name in names:
        label = read_text(f"{root}/{name}/name").strip()
        if label.startswith("package") or label == "dram":
            found.append(f"{root}/{name}")
    return [zone for zone in found if read_number(f"{zone}/energy_uj") is not None]


class Joules:
    """Counts joules from the moment it is made, also when the kernel's counters wrap around."""

    def __init__(self, root: str = POWERCAP) -> None:
        self._zones = zones(root)
        self._last: dict[str, int] = {}
        self._total = 0
        self.read()

    def read(self) -> float | None:
        """The joules so far; ``None`` on a machine without readable energy counters."""
        for zone in self._zones:
            now = read_number(f"{zone}/energy_uj")
            if now is None:
                continue
            passed = now - self._last.get(zone, now)
            if passed < 0:
                passed += read_number(f"{zone}/max_energy_range_uj") or now
            self._total += max(0, passed)
            self._last[zone] = now
        return self._total / 1e6 if self._zones else None
