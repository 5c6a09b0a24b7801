"""What the machine that we run on has, without importing torch."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OUR_CGROUPS = Path("/proc/self/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")
NVIDIA = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")


@dataclass(frozen=True)
class Facts:
    """Cores that may be used at once, their numbers, bytes of memory, GPUs."""

    cores: int
    cpu_ids: tuple[int, ...]
    memory: int
    gpus: int
    usable_gpus: int
    """Fewer than ``gpus`` when the installed torch is a CPU build."""


def measure() -> Facts:
    ids = allowed_cpus()
    quota = cpu_quota()
    cores = len(ids) if quota is None else max(1, min(len(ids), math.floor(quota)))
    gpus = count_gpus()
    usable = gpus if gpus and torch_knows_gpus() else 0
    return Facts(cores, ids, psutil.virtual_memory().total, gpus, usable)


def allowed_cpus() -> tuple[int, ...]:
    """The cores that this process may run on, siblings of a physical core side by side."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    return order_by_core(os.sched_getaffinity(0))


def order_by_core(ids: set[int], topology: Path = TOPOLOGY) -> tuple[int, ...]:
    """Neighbours share caches, so that a worker's cores are cut from one piece."""

    def place(cpu: int) -> tuple[int, int, int]:
        folder = topology / f"cpu{cpu}" / "topology"
        package = _number(folder / "physical_package_id")
        core = _number(folder / "core_id")
        return (package or 0, cpu if core is None else core, cpu)

    return tuple(sorted(ids, key=place))


def cpu_quota(ours: Path = OUR_CGROUPS, mount: Path = CGROUPS) -> float | None:
    """How many cores' worth of time the control groups allow us; ``None`` without a limit."""
    try:
        lines = ours.read_text().splitlines()
    except OSError:
        return None
    limits: list[float] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            limits += _limits_upwards(mount, path) + _limits_upwards(mount / "unified", path)
        elif "cpu" in controllers.split(","):
            limits += _limits_upwards(mount / "cpu", path)
    return min(limits, default=None)


def _limits_upwards(root: Path, path: str) -> list[float]:
    """The limits of a group and of every group above it: the tightest one counts."""
    folder = root / path.lstrip("/")
    folders = [folder, *(p for p in folder.parents if p == root or root in p.parents)]
    return [limit for f in folders if (limit := _limit_of(f)) is not None]


def _limit_of(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    old_quota = _number(folder / "cpu.cfs_quota_us")
    old_period = _number(folder / "cpu.cfs_period_us")
    if not old_quota or old_quota < 0 or not old_period:
        return None
    return old_quota / old_period


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def count_gpus(nvidia: Path = NVIDIA, devices: Path = DEVICES) -> int:
    """NVIDIA GPUs that processes started from here see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = None if visible is None else _named_devices(visible)
    if named == 0:
        return 0
    present = _gpus_of_driver(nvidia, devices)
    if present is None:
        present = _gpus_of_tool()
    return present if named is None else min(named, present)


def _named_devices(visible: str) -> int:
    """CUDA counts up to the first name that is empty or negative."""
    names = [n.strip() for n in visible.split(",")]
    return next((i for i, n in enumerate(names) if not n or n.startswith("-")), len(names))


def _gpus_of_driver(nvidia: Path, devices: Path) -> int | None:
    """A container may see every GPU of its host listed, but has devices for its own only."""
    try:
        listed = sum(1 for folder in nvidia.iterdir() if folder.is_dir())
    except OSError:
        return None
    ours = sum(1 for node in devices.glob("nvidia[0-9]*") if node.name[6:].isdecimal())
    return min(listed, ours) if ours else listed


def _gpus_of_tool() -> int:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        answer = subprocess.run(
            [tool, "-L"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(re.findall(r"^GPU \d+:", answer.stdout, re.MULTILINE))


def torch_knows_gpus() -> bool:
    """Whether the installed torch is a CUDA build, judged by its files."""
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found else None
    return any(
        next((Path(folder) / "lib").glob("*torch_cuda*"), None) is not None
        for folder in folders or ()
    )
