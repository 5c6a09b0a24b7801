"""Control groups, versions 1 and 2: the machine's limits on processor and memory, and its usage.

In a container or an emulated machine, the kernel's figures are those of the whole host; the
control groups have the machine's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

MOUNT = "/sys/fs/cgroup"
OURS = "/proc/self/cgroup"
FIRST_PROCESS = "/proc/1/cgroup"
UNLIMITED = 1 << 60
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
CPU_STAT = (
    ("usage_usec", "busy", 1e6),
    ("user_usec", "user", 1e6),
    ("system_usec", "system", 1e6),
    ("throttled_usec", "throttled", 1e6),
    ("throttled_time", "throttled", 1e9),
)
"""Names of version 2, and the last of version 1."""
PRESSURES = ("cpu", "memory", "io")
FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The PID namespace of the host itself: the Linux kernel always gives it this number."""


class ControlGroup(NamedTuple):
    """A folder of the control group file system."""

    folder: str
    is_root: bool


def read_text(path: str) -> str:
    """The file's text, or an empty string if it cannot be read."""
    try:
        return Path(path).read_text()
    except (OSError, ValueError):
        return ""


def read_number(path: str) -> int | None:
    try:
        return int(read_text(path))
    except ValueError:
        return None


def numbers_in(path: str) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    found = {}
    for line in read_text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found


def groups_of(controller: str, listing: str = OURS, mount: str = MOUNT) -> list[ControlGroup]:
    """A process's groups for a controller, innermost first; those of version 2 come last."""
    first: list[ControlGroup] = []
    second: list[ControlGroup] = []
    for line in read_text(listing).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            root = f"{mount}/unified" if Path(mount, "unified").is_dir() else mount
            second = _upwards(root, path)
        elif controller in controllers.split(","):
            first = _upwards(f"{mount}/{controller}", path)
    return first + second


def _upwards(root: str, path: str) -> list[ControlGroup]:
    # In a container the path may be the host's, while the mounted tree is the container's own.
    parts = [part for part in path.split("/") if part and part != ".."]
    while parts and not Path(root, *parts).is_dir():
        parts.pop()
    found = []
    while parts:
        found.append(ControlGroup("/".join([root, *parts]), False))
        parts.pop()
    return [*found, ControlGroup(root, True)] if Path(root).is_dir() else found


def in_container() -> bool:
    """Whether we run in a container: a PID namespace that is not the host's own."""
    try:
        own = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  (not in Python 3.8's pathlib)
        return own != FIRST_PID_NAMESPACE
    except OSError:
        return False


def cpu_quota(listing: str = OURS, mount: str = MOUNT) -> float | None:
    """How many cores' worth of processor time we may use; ``None`` without a limit."""
    limits = [quota_of(group.folder) for group in groups_of("cpu", listing, mount)]
    return min((limit for limit in limits if limit is not None), default=None)


def quota_of(folder: str) -> float | None:
    words = read_text(f"{folder}/cpu.max").split()
    if len(words) >= 2:
        return None if words[0] == "max" else int(words[0]) / int(words[1])
    quota = read_number(f"{folder}/cpu.cfs_quota_us")
    period = read_number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota and quota > 0 and period else None


def cpu_group() -> str | None:
    """The group whose processor time is this machine's; ``None`` if the kernel's figures are.

    It is a group with a quota, because the quota is all that we can use, or the group of a
    container's first process. A login's group is not: others work on the machine, too.
    """
    limited = limited_group()
    if limited is not None:
        # Version 1 may count a group's processor time in another tree than its quota.
        beside = limited.replace(f"{MOUNT}/cpu/", f"{MOUNT}/cpuacct/", 1)
        counted = next((f for f in (limited, beside) if cpu_seconds(f) is not None), None)
        if counted:
            return counted
    if in_container():
        for controller in ("cpuacct", "cpu"):
            for group in groups_of(controller, FIRST_PROCESS):
                if not group.is_root and cpu_seconds(group.folder) is not None:
                    return group.folder
    return None


def limited_group() -> str | None:
    """The innermost group with a quota of processor time."""
    groups = (each for each in groups_of("cpu") if not each.is_root)
    return next((each.folder for each in groups if quota_of(each.folder) is not None), None)


def cpu_seconds(folder: str) -> float | None:
    """Processor time that a group has used."""
    return cpu_figures(folder).get("busy")


def cpu_figures(folder: str) -> dict[str, float]:
    """Seconds of processor time that a group has used (``busy``), in programs (``user``) and in the
    kernel (``system``), and that its quota refused it, over all cores; as far as it tells."""
    stat = numbers_in(f"{folder}/cpu.stat")
    found = {ours: stat[name] / scale for name, ours, scale in CPU_STAT if name in stat}
    nanoseconds = read_number(f"{folder}/cpuacct.usage")
    if nanoseconds is not None:
        kinds = numbers_in(f"{folder}/cpuacct.stat").items()
        found.update({kind: ticks / TICKS for kind, ticks in kinds}, busy=nanoseconds / 1e9)
    return found


def pressure_files() -> dict[str, str]:
    """The files that tell how long processes waited for what; none if they are the host's only."""
    contained = in_container()
    if not contained and cpu_group() is None:
        return {name: f"/proc/pressure/{name}" for name in PRESSURES}
    for group in groups_of("", FIRST_PROCESS if contained else OURS):
        if Path(group.folder, "cgroup.type").exists():  # every group but the host's own has one
            return {name: f"{group.folder}/{name}.pressure" for name in PRESSURES}
    return {}


def pressure_seconds(path: str) -> float | None:
    """Seconds so far in which at least one process waited."""
    first = read_text(path).partition("\n")[0]
    words = first.partition(" total=")[2]
    return int(words) / 1e6 if first.startswith("some ") and words.isdigit() else None


def memory_limit() -> int | None:
    """Bytes that we may use; ``None`` without a limit."""
    limits = [limit_of(group.folder) for group in groups_of("memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def limit_of(folder: str) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = read_number(f"{folder}/{name}")
        if limit is not None:
            return limit if limit < UNLIMITED else None
    return None


def memory_group() -> str | None:
    """The group whose memory is this machine's; ``None`` if the kernel's figures are."""
    for group in groups_of("memory"):
        if limit_of(group.folder) is not None and memory_used(group.folder) is not None:
            return group.folder
    if in_container():
        for group in groups_of("memory", FIRST_PROCESS):
            if not group.is_root and memory_used(group.folder) is not None:
                return group.folder
    return None


def memory_used(folder: str) -> int | None:
    """Bytes in use, without cached files that the kernel would give up at once."""
    return memory_figures(folder).get("used")


def memory_figures(folder: str) -> dict[str, int]:
    """Bytes in use, in cached files and in swap, and major page faults so far, if they are known.

    What the kernel would give up at once is not in use.
    """
    size = read_number(f"{folder}/memory.current")
    size = read_number(f"{folder}/memory.usage_in_bytes") if size is None else size
    stat = numbers_in(f"{folder}/memory.stat")
    # In version 1 the totals include the groups inside this one; version 2 has no others.
    stat.update({name[6:]: stat[name] for name in list(stat) if name.startswith("total_")})
    swap_events = [stat[name] for name in ("pswpin", "pswpout") if name in stat]
    found = {
        "used": None if size is None else max(0, size - stat.get("inactive_file", 0)),
        "cached": stat.get("cache", stat.get("file")),
        "swap": stat.get("swap", read_number(f"{folder}/memory.swap.current")),
        "swap_bytes": sum(swap_events) * PAGE if swap_events else None,
        "major_faults": stat.get("pgmajfault"),
    }
    return {name: value for name, value in found.items() if value is not None}
