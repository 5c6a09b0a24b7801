"""What a lab has made, in one file that is written before each thing is made.

So ``lab down`` finds everything also after ``lab up`` was killed in the middle.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from phalanx.agent.system import stat_fields
from phalanx.core.errors import InputError
from phalanx.core.files import write_whole
from phalanx.core.registry import did_you_mean

HOME = Path("/run/phalanx-lab")
STATE_FILE = "state.json"
KEY_FILE = "key"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class MachineState(msgspec.Struct):
    """One emulated machine: what belongs to it, and how it is now."""

    name: str
    address: str
    interface: str
    """The host's end of its link; its own end is called eth0."""
    cgroups: tuple[str, ...]
    cpu: float | None = None
    """Percent of one core that it may use now; ``None`` without a quota."""
    cpu_at_first: float | None = None
    """What ``lab heal`` restores after ``lab slow``."""
    host_key: str = ""
    pid: int = 0
    """The machine's first process, as the host numbers it."""
    started: int | None = None
    """When the kernel started that process: a later process may have the same number."""
    cut: bool = False
    killed: bool = False
    rate: float | None = None
    """Bits per second of its link; ``None`` without a limit."""

    @property
    def folders(self) -> list[Path]:
        """The folders of the machine's control groups."""
        return [Path(folder) for folder in self.cgroups]

    @property
    def alive(self) -> bool:
        return self.pid > 0 and started_at(self.pid) == self.started

    @property
    def status(self) -> str:
        if self.killed:
            return "killed"
        if not self.alive:
            return "lost"
        if self.cut:
            return "cut"
        return "up" if self.cpu == self.cpu_at_first else "slow"


class LabState(msgspec.Struct):
    name: str
    bridge: str
    subnet: str
    gateway: str
    cgroups: tuple[str, ...]
    """The folders that contain the machines' control groups."""
    machines: list[MachineState]
    rate: float | None = None
    """Rate of links that were given none of their own."""
    memory: int | None = None
    ready: bool = False
    blueprint: str | None = None
    blueprint_digest: str | None = None


def started_at(pid: int) -> int | None:
    """When the kernel started a process, in its ticks; ``None`` when there is none any more."""
    fields = stat_fields(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def folder_of(name: str, home: Path = HOME) -> Path:
    if not _NAME.fullmatch(name):
        raise InputError(f"'{name}' cannot name a lab", "Use up to 32 letters, digits, - and _.")
    return home / name


def names(home: Path = HOME) -> list[str]:
    """The labs that are there, whole or not."""
    try:
        return sorted(entry.name for entry in home.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def read(name: str, home: Path = HOME) -> LabState | None:
    """The state of a lab; ``None`` when it has a folder but nothing was made yet."""
    folder = folder_of(name, home)
    if not folder.is_dir():
        known = names(home)
        remedy = did_you_mean(name, known) if known else "Start one: phalanx lab up --count 3"
        raise InputError(f"there is no lab '{name}'", remedy)
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=LabState)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise InputError(f"{folder / STATE_FILE}: {error}", "Restore that file.") from None


def write(state: LabState, home: Path = HOME) -> None:
    write_whole(folder_of(state.name, home) / STATE_FILE, msgspec.json.encode(state))


def claim(name: str, home: Path = HOME) -> Path:
    """The new folder of a lab, which no other lab can have."""
    folder = folder_of(name, home)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise InputError(
            f"there is already a lab '{name}'",
            f"End it: phalanx lab down {name}   (or give another --name)",
        ) from None
    return folder


def forget(name: str, home: Path = HOME) -> None:
    """Remove the folder of a lab, and the folder of all labs when it was the last."""
    shutil.rmtree(folder_of(name, home), ignore_errors=True)
    if home.is_dir() and not any(home.iterdir()):
        home.rmdir()


@contextmanager
def alone(home: Path = HOME) -> Iterator[None]:
    """Lets only one command at a time choose networks and names."""
    while True:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            if not home.is_dir() or os.fstat(number).st_ino != home.stat().st_ino:
                continue  # removed by the one that had the lock before
            yield
            return
        finally:
            os.close(number)
