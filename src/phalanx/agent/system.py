"""What Python's library lacks for processes on Linux: death signals, groups, children."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_TICK = 0.02


def readable(descriptors: Iterable[int], seconds: float | None = None) -> set[int]:
    """Waits for descriptors that have something to read or are at their end, and returns them.
    ``select.select`` cannot watch descriptors from 1024 on."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return {found for found, _ in waiting.poll(None if seconds is None else seconds * 1000)}


def prctl(option: int, value: int) -> None:
    """Call ``prctl``; does nothing where it does not exist (macOS)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def bound(words: list[str], *options: str) -> list[str]:
    """``words`` as a command that ends with us."""
    # ``child`` ties the command to us; its source comes from wherever the agent was imported.
    name = "phalanx.agent.child"
    shim = str(importlib.util.find_spec(name).loader.get_source(name))  # type: ignore[union-attr]
    return [sys.executable, *options, "-I", "-S", "-c", shim, str(os.getpid()), *words]


def adopt_orphans() -> None:
    """Processes that our descendants leave behind become our children, not init's."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send us ``number`` when ``parent`` ends."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before that, so no signal comes
        os._exit(1)


def every_process() -> list[int]:
    """All processes in the process table; none where there is no such table."""
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return []


def children() -> list[int]:
    """The process ids of this process's children."""
    me = str(os.getpid())
    return [pid for pid in every_process() if stat_fields(pid)[1:2] == [me]]


def stat_fields(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on: state, parent, group, session …"""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def has_ended(pid: int) -> bool:
    """Whether our child has ended, without reaping it: until then its group is still ours."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_worker(pid: int, number: int) -> None:
    """Send SIGTERM to the worker alone, because it still needs its reader processes to end in
    order; send other signals to its whole group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.kill if number == signal.SIGTERM else os.killpg)(pid, number)


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether a process was started with this in its environment."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{name}={value}".encode() in variables


def end_children(seconds: float) -> None:
    """Kill and reap all children, and the orphans that become ours; for the end of a process."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_TICK)
