"""Labs for tests: ``from lab_machines import lab`` gives a fixture that makes and removes them."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import PhalanxError
from phalanx.lab.lab import Lab
from phalanx.lab.needs import check_host

MakeLab = Callable[..., Lab]
_numbers = itertools.count(1)


def missing() -> str | None:
    """Why no lab can be made here; ``None`` when one can."""
    try:
        check_host()
    except PhalanxError as error:
        return f"{error.cause}. {error.remedy}"
    return None


def unique_name() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="module")
def lab() -> Iterator[MakeLab]:
    """``lab(count, **limits)``: a lab of that many machines, gone when the module's tests end."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    made: list[Lab] = []

    def make(count: int, **limits: Any) -> Lab:
        made.append(Lab.up(count, **{"name": unique_name(), **limits}))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.down()


def run_in(lab: Lab, machine: str, words: Sequence[str], limit: float = 30.0) -> str:
    """What a command says in a machine; an error when it fails."""
    ended = subprocess.run(
        lab.command(machine, words), capture_output=True, text=True, timeout=limit, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def ssh(lab: Lab, machine: str, *words: str, limit: float = 30.0) -> str:
    """What a command says in a machine that is entered as a user would: by ssh, with the key."""
    found = lab.machine(machine)
    options = {
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "10",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": os.devnull,
        "LogLevel": "ERROR",
    }
    flags = [flag for name, value in options.items() for flag in ("-o", f"{name}={value}")]
    ended = subprocess.run(
        ["ssh", "-F", "none", "-i", str(lab.key), *flags, f"root@{found.address}", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def traces(name: str) -> set[str]:
    """What this host has of a lab: its folder, control groups, links, mounts and processes."""
    label = f"phalanx-lab-{name}"
    found = {str(path) for path in Path("/run/phalanx-lab").glob(name)}
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        found |= {f"{root}/{folder}" for folder in folders if folder == label}
    for link in Path("/sys/class/net").iterdir():
        if label in _content(link / "ifalias"):
            found.add(f"link {link.name}")
    found |= {line for line in _content(Path("/proc/mounts")).splitlines() if name in line}
    for process in Path("/proc").glob("[0-9]*"):
        if f"{label}/" in _content(process / "cmdline") + _content(process / "cgroup"):
            found.add(f"process {process.name}")
    return found


def _content(file: Path) -> str:
    """Nothing when it has vanished meanwhile."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
