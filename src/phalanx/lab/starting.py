"""Start a machine's first process, and run commands in a machine that is up."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from phalanx.agent.system import readable
from phalanx.core.errors import MachineError
from phalanx.lab import first_process
from phalanx.lab.needs import call, tool
from phalanx.lab.state import KEY_FILE, LabState, MachineState

START_LIMIT = 30.0
HIDDEN = (Path("/tmp"), Path("/run"), Path("/dev/shm"))
"""Folders of which every machine has its own."""
ENTER = (
    'until [ "$1" = -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; '
    'PHALANX_LAB_FOLDER=$PWD exec "$@"'
)
INSIDE = 'cd "$PHALANX_LAB_FOLDER" 2>/dev/null || cd; unset PHALANX_LAB_FOLDER; exec "$@"'


class Starting:
    """A first process that has its namespaces and waits to learn what machine it is."""

    def __init__(self, lab: str, machine: MachineState) -> None:
        self.machine = machine
        # The last word is for those who look at a list of processes.
        label = f"phalanx-lab-{lab}/{machine.name}"
        program = [sys.executable, "-I", "-S", first_process.__file__, label]
        self._process = subprocess.Popen(
            into_groups(machine, program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
        self._end = time.monotonic() + START_LIMIT

    def pid(self) -> int:
        line = self._line()
        if not line.isdecimal():
            raise self._failed(line)
        self._process.wait(START_LIMIT)
        return int(line)

    def set_up(self, setup: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(setup).encode())
        self._process.stdin.close()

    def wait_ready(self) -> None:
        line = self._line()
        if line != "ready":
            raise self._failed(line.removeprefix("error "))

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _line(self) -> str:
        stream = self._process.stdout
        assert stream is not None
        left = max(0.0, self._end - time.monotonic())
        if not readable([stream.fileno()], left):
            return f"it did not report within {START_LIMIT:g} s"
        return stream.readline().decode(errors="replace").strip()

    def _failed(self, line: str) -> MachineError:
        rest = line
        if line.startswith("Traceback") and self._process.stdout is not None:
            rest = self._process.stdout.read().decode(errors="replace").strip().splitlines()[-1]
        return MachineError(
            f"machine '{self.machine.name}' did not start: {rest or 'it ended immediately'}",
            "Check that the kernel allows this user to create namespaces and mounts.",
        )


def into_groups(machine: MachineState, words: Sequence[str]) -> list[str]:
    """``words`` as a command that first goes into the machine's control groups."""
    groups = [f"{folder}/cgroup.procs" for folder in machine.cgroups]
    return ["/bin/sh", "-c", ENTER, "phalanx-lab", *groups, "--", *words]


def inside(machine: MachineState, words: Sequence[str]) -> list[str]:
    """``words`` as a command of this host that runs them in the machine.

    When the command here is ended, its process in the machine ends too.
    """
    spaces = ["--net", "--pid", "--mount", "--uts", "--ipc"]
    enter = [tool("nsenter"), "--target", str(machine.pid), *spaces, "--"]
    bound = [tool("setpriv"), "--pdeathsig", "KILL", "--"]
    home = ["/usr/bin/env", f"HOME={first_process.HOME}"]
    here = ["/bin/sh", "-c", INSIDE, "phalanx-lab"]
    return into_groups(machine, [*enter, *bound, *home, *here, *words])


def setup_of(
    state: LabState,
    machine: MachineState,
    folder: Path,
    shared: Sequence[Path],
    password: str | None = None,
) -> dict[str, object]:
    """What a first process has to know about its machine."""
    known = [(state.gateway, "controller"), *((m.address, m.name) for m in state.machines)]
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{a} {n}" for a, n in known)]
    return {
        "name": machine.name,
        "address": machine.address,
        "hosts": "".join(f"{line}\n" for line in lines),
        "host_key": (folder / f"{machine.name}.host_key").read_text(),
        "authorized_key": (folder / f"{KEY_FILE}.pub").read_text(),
        "sshd": tool("sshd"),
        "shared": [str(path) for path in shared],
        "password": password,
    }


def shared_folders(wanted: Sequence[Path | str]) -> list[Path]:
    """Folders that all machines see although they are below one of ``HIDDEN``."""
    ours = [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2]]
    every = {path.absolute() for path in [*ours, *map(Path, wanted)]}
    return sorted(p for p in every if any(h in p.parents for h in HIDDEN) and p.is_dir())


def make_key(path: Path, comment: str) -> str:
    """A new key pair; the fingerprint of its public half."""
    call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    blob = base64.b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1])
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"
