"""Control groups of a lab: how much processor time and memory a machine gets.

Version 1 (a tree per controller) and version 2 (one tree). If the kernel allows it, the groups are
made below our own group, so that our limits apply to the lab.
"""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from phalanx.agent.machine.control_groups import groups_of
from phalanx.core.errors import InputError, MachineError

MOUNT = Path("/sys/fs/cgroup")
WITHOUT_CONTROLLERS = "unified"
SHORTEST_PERIOD = 10_000
"""Microseconds. Shorter than the kernel's 100 ms, so that a slow machine computes evenly."""
SMALLEST_QUOTA = 2_000
"""Microseconds; the kernel refuses less than half of that."""
REMOVAL_LIMIT = 10.0
REMEDY = "Mount the control groups cpu and memory in /sys/fs/cgroup."


def parents(name: str, mount: Path = MOUNT, ours: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """The folders for a lab of that name: one for each tree."""
    group = f"phalanx-lab-{name}"
    if (mount / "cgroup.controllers").exists():
        # Version 2 gives controllers only to children of groups without processes: the root.
        return [mount / group]
    found = []
    # Processor time is counted in a tree of its own, on some hosts.
    apart = mount / "cpuacct"
    same = apart.exists() and apart.resolve() == (mount / "cpu").resolve()
    for controller in ("cpu", "memory", *(["cpuacct"] if apart.exists() and not same else [])):
        known = [Path(each.folder) for each in groups_of(controller, str(ours), str(mount))]
        if not known or not (known[0] / "cgroup.procs").exists():
            raise InputError(f"this host has no control group '{controller}'", REMEDY)
        found.append(known[0] / group)
    # Version 2 without controllers, beside version 1, counts how long processes wait for what.
    waits = mount / WITHOUT_CONTROLLERS
    return [*found, waits / group] if (waits / "cgroup.procs").exists() else found


def make_parent(folder: Path) -> None:
    """Make the group that contains the machines' groups; in version 2 it enables controllers."""
    folder.mkdir(exist_ok=True)
    for control in (f / "cgroup.subtree_control" for f in (folder.parent, folder)):
        if control.exists() and folder.parent.name != WITHOUT_CONTROLLERS:
            _put(control, "+cpu +memory")


def limit_cpu(folders: list[Path], percent: float | None) -> None:
    """Percent of one core; ``None`` lifts the limit."""
    quota, period = quota_of(percent)
    for folder in folders:
        if (folder / "cpu.max").exists():
            _put(folder / "cpu.max", f"{quota or 'max'} {period}")
        elif (folder / "cpu.cfs_quota_us").exists():
            # Lifted first: for a moment the old quota and the new period would be together.
            _put(folder / "cpu.cfs_quota_us", "-1")
            _put(folder / "cpu.cfs_period_us", str(period))
            _put(folder / "cpu.cfs_quota_us", str(quota or -1))


def quota_of(percent: float | None) -> tuple[int | None, int]:
    """Microseconds of processor time in a period of so many."""
    if percent is None:
        return None, SHORTEST_PERIOD
    period = max(SHORTEST_PERIOD, math.ceil(SMALLEST_QUOTA * 100 / percent))
    return round(period * percent / 100), period


def limit_memory(folders: list[Path], size: int | None) -> None:
    for folder in folders if size else ():
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (folder / name).exists():
                _put(folder / name, str(size))


def processes(folder: Path) -> list[int]:
    try:
        return [int(word) for word in (folder / "cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def kill_all(folder: Path) -> None:
    """Kill all processes of a group; the lab made it, so it has no other processes."""
    for pid in processes(folder):
        if pid not in (0, os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def remove(folder: Path) -> None:
    """Remove a group, as soon as the kernel has let go of its last process."""
    end = time.monotonic() + REMOVAL_LIMIT
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > end:
                raise MachineError(
                    f"{folder} cannot be removed: {error.strerror}", "Try again: phalanx lab down"
                ) from None
            kill_all(folder)
            time.sleep(0.02)
        else:
            return


def _put(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise MachineError(f"{file}: '{text}' was refused: {error.strerror}", REMEDY) from None
