"""Remove what a lab made, whatever of it is there."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from phalanx.core.errors import MachineError
from phalanx.lab import cgroups, network
from phalanx.lab.state import LabState, MachineState

END_LIMIT = 10.0


def kill_and_wait(machines: list[MachineState]) -> None:
    for machine in machines:
        if machine.alive:  # its first process: with it, every other one ends
            with suppress(ProcessLookupError):
                os.kill(machine.pid, signal.SIGKILL)
    end = time.monotonic() + END_LIMIT
    while any(machine.alive for machine in machines):
        if time.monotonic() > end:
            names = ", ".join(m.name for m in machines if m.alive)
            raise MachineError(f"{names} did not end within {END_LIMIT:g} s", "Try again.")
        time.sleep(0.01)


def remove(state: LabState) -> None:
    """Processes first: nothing else can be removed while they hold it."""
    kill_and_wait(state.machines)
    folders = [folder for machine in state.machines for folder in machine.folders]
    for folder in folders:
        cgroups.kill_all(folder)
    network.remove_network(state)
    for folder in [*folders, *map(Path, state.cgroups)]:
        cgroups.remove(folder)
    # The blueprint goes too, unless somebody has changed it since: then it is theirs.
    if state.blueprint is None:
        return
    path = Path(state.blueprint)
    with suppress(FileNotFoundError):
        if hashlib.sha256(path.read_bytes()).hexdigest() == state.blueprint_digest:
            path.unlink()
