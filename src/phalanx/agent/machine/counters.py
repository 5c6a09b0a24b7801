"""Reads the kernel's counters of processor time, networks, disks and processes; and processors' own
counters of energy (RAPL), if this user may read them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from phalanx.agent.machine import control_groups as groups
from phalanx.agent.machine.control_groups import read_number, read_text
from phalanx.agent.system import every_process, stat_fields

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
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


def disk_bytes() -> tuple[int, int] | None:
    """Bytes read from and written to all disks; partitions are left out, as they are in them."""
    try:
        disks = {
            disk.name
            for disk in Path("/sys/block").iterdir()
            if not disk.name.startswith(NOT_DISKS)
        }
    except OSError:
        return None
    read = written = 0
    for line in read_text("/proc/diskstats").splitlines():
        fields = line.split()
        if len(fields) >= 10 and fields[2] in disks:
            read, written = read + int(fields[5]), written + int(fields[9])
    return read * SECTOR, written * SECTOR


class Processor:
    """Processor time of this machine, in seconds that only differences of mean anything."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._names = {f"cpu{number}" for number in ids}
        self._group = groups.cpu_group()
        if self._group is not None:
            self.source = "cgroup"
        elif groups.in_container():
            self.source = "processes"
        else:
            self.source = "kernel"
        self._table = Processes()

    def seconds(self) -> float:
        if self._group is not None:
            return groups.cpu_seconds(self._group) or 0.0
        if self.source == "processes":
            return self._table.use(every_process())[0]
        return busy_seconds(read_text("/proc/stat"), self._names)


def busy_seconds(text: str, names: Iterable[str]) -> float:
    """Seconds in which these cores were busy, from ``/proc/stat``; ``user`` includes guests."""
    ticks = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name in names and len(fields) >= 8:
            user, nice, system, _idle, _iowait, *rest = map(int, fields[:8])
            ticks += user + nice + system + sum(rest)
    return ticks / TICKS


class Processes:
    """Processor time and memory of some processes.

    When a process ends, its time counts as that of the parent that waits for it, so the sum goes
    on. If none of these processes waits for it, the kernel's sum falls, and ours stays the same.
    """

    def __init__(self) -> None:
        self._last = self._total = 0.0

    def use(self, pids: Iterable[int]) -> tuple[float, int]:
        """Processor seconds of the processes so far, and bytes of memory now."""
        found = [use for use in map(_times, pids) if use is not None]
        now = sum(seconds for seconds, _ in found)
        self._total += max(0.0, now - self._last)
        self._last = now
        return self._total, sum(memory for _, memory in found)


def _times(pid: int) -> tuple[float, int] | None:
    fields = stat_fields(pid)
    if len(fields) < 22:
        return None
    return sum(map(int, fields[11:15])) / TICKS, int(fields[21]) * PAGE


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
