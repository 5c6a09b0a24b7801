"""Facts about this machine: asked for once, before anything is planned."""

from __future__ import annotations

import fcntl
import getpass
import math
import os
import platform
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.agent.machine import control_groups as groups
from phalanx.agent.machine import gpus

TOPOLOGY = "/sys/devices/system/cpu"
SIOCGIFADDR = 0x8915


def machine_facts(folder: Path) -> dict[str, Any]:
    """All facts about this machine; ``folder`` is where Phalanx keeps its files."""
    ids = cpu_ids()
    return {
        "hostname": socket.gethostname(),
        "user": _user(),
        "folder": str(folder),
        "disk_free": disk_free(folder),
        "python": sys.executable or "",
        "cores": usable_cores(ids),
        "cpu_ids": ids,
        "cpu_model": cpu_model(),
        "memory": memory(),
        "gpus": gpus.gpu_facts(),
        "addresses": addresses(),
        "default_interface": default_interface(),
        "machine_id": machine_id(),
        "wall": time.time(),  # last: read when the answer leaves
    }


def usable_cores(ids: list[int]) -> int:
    """How many cores we may use; with a quota of half the time of eight cores, four."""
    quota = groups.cpu_quota()
    return len(ids) if quota is None else max(1, min(len(ids), math.floor(quota)))


def cpu_ids() -> list[int]:
    """The cores that we may run on, siblings of one physical core side by side."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return order_by_core(os.sched_getaffinity(0))


def order_by_core(ids: Iterable[int], topology: str = TOPOLOGY) -> list[int]:
    """Order cores by physical core, so that the cores of a worker share caches."""

    def place(cpu: int) -> tuple[int, int, int]:
        folder = f"{topology}/cpu{cpu}/topology"
        package = groups.read_number(f"{folder}/physical_package_id")
        core = groups.read_number(f"{folder}/core_id")
        return (package or 0, cpu if core is None else core, cpu)

    return sorted(ids, key=place)


def cpu_model() -> str:
    found: dict[str, str] = {}
    for line in groups.read_text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip().lower(), value.strip())
    return (found.get("model name") or found.get("model") or platform.processor())[:100]


def memory() -> int | None:
    """Bytes of memory, or the control group's limit if that is less."""
    known = (meminfo().get("MemTotal"), groups.memory_limit())
    return min((size for size in known if size is not None), default=None)


def meminfo() -> dict[str, int]:
    found = {}
    for line in groups.read_text("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def disk_free(folder: Path) -> int | None:
    """Bytes that this user may still write where Phalanx keeps its files."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(str(folder)).free
    except OSError:
        return None


def machine_id() -> str:
    """An identifier of the boot, PID namespace and network namespace of this process."""
    boot = groups.read_text("/proc/sys/kernel/random/boot_id").strip() or platform.node()
    spaces = []
    for name in ("pid", "net"):
        try:
            spaces.append(str(Path(f"/proc/self/ns/{name}").stat().st_ino))
        except OSError:
            continue
    return ".".join([boot, *spaces])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def addresses() -> list[dict[str, str]]:
    """Every address with its interface, except loopback and link-local ones."""
    if not sys.platform.startswith("linux"):
        return []
    # /proc/net/if_inet6: address, number, length of the prefix, scope (0: global), flags.
    found = []
    for line in groups.read_text("/proc/net/if_inet6").splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[3] == "00":
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
            found.append({"interface": fields[5], "address": address})
    return _version_4() + found


def _version_4() -> list[dict[str, str]]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # this interface has no address
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found.append({"interface": name, "address": address})
    return found


def default_interface() -> str:
    """The network device of the default route; empty when there is none."""
    for line in groups.read_text("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == "00000000" and fields[7] == "00000000":
            return fields[0]
    return ""
