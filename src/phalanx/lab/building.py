"""Make a lab: everything is named and written down first, then made; and remove what was made,
whatever of it is there."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from phalanx.core.errors import MachineError
from phalanx.lab import cgroups, network
from phalanx.lab import state as states
from phalanx.lab.needs import call
from phalanx.lab.starting import Starting, make_key, setup_of
from phalanx.lab.state import LabState, MachineState

Limits = Sequence[float | None]
"""A limit for each machine; ``None``: unlimited."""


def plan(
    name: str, quotas: Limits, rate: float | None, rates: Limits, memory: int | None
) -> LabState:
    """Claim the name and a network; nothing but the lab's folder and its bridge is made."""
    with states.alone():
        states.claim(name)
        state = None
        try:
            state = _named(name, quotas, rate, rates, memory)
            states.write(state)
            # At once, so that the next lab sees that this network is taken.
            network.make_bridge(state)
        except BaseException:
            if state is not None:
                remove(state)
            states.forget(name)
            raise
    return state


def _named(
    name: str, quotas: Limits, rate: float | None, rates: Limits, memory: int | None
) -> LabState:
    subnet, bridge = network.choose_subnet(), network.choose_bridge()
    parents, addresses = cgroups.parents(name), list(subnet.hosts())
    machines = [
        MachineState(
            name=(machine := f"m{number}"),
            address=str(addresses[number]),
            interface=f"{bridge}p{number}",
            cgroups=tuple(str(folder / machine) for folder in parents),
            cpu=quota,
            cpu_at_first=quota,
            rate=own,
        )
        for number, (quota, own) in enumerate(zip(quotas, rates, strict=True), start=1)
    ]
    return LabState(
        name=name,
        bridge=bridge,
        subnet=str(subnet),
        gateway=str(addresses[0]),
        cgroups=tuple(map(str, parents)),
        machines=machines,
        rate=rate,
        memory=memory,
    )


def build(state: LabState, shared: Sequence[Path], password: str | None = None) -> None:
    """Make keys, control groups, first processes and links; then the machines set themselves up."""
    _make_keys(state)
    _make_groups(state)
    hashed = None
    if password:  # over standard input: all users can read a command's words
        hashed = call(["openssl", "passwd", "-6", "-stdin"], password + "\n").strip()
    started: list[Starting] = []
    try:
        for machine in state.machines:
            started.append(Starting(state.name, machine))
        for one in started:  # before its number is known, its control group tells which it is
            one.machine.pid = one.pid()
            one.machine.started = states.started_at(one.machine.pid)
            if one.machine.started is None:
                raise MachineError(f"machine '{one.machine.name}' ended immediately", "Try again.")
        states.write(state)
        for one in started:
            network.make_link(state, one.machine)
        folder = states.folder_of(state.name)
        for one in started:
            one.set_up(setup_of(state, one.machine, folder, shared, hashed))
        for one in started:
            one.wait_ready()
    finally:
        for one in started:
            one.close()
    state.ready = True
    states.write(state)


def _make_keys(state: LabState) -> None:
    folder = states.folder_of(state.name)
    make_key(folder / states.KEY_FILE, f"phalanx-lab {state.name}")

    def host_key(machine: MachineState) -> str:
        return make_key(folder / f"{machine.name}.host_key", machine.name)

    with ThreadPoolExecutor(4) as pool:
        for machine, fingerprint in zip(
            state.machines, pool.map(host_key, state.machines), strict=True
        ):
            machine.host_key = fingerprint
    states.write(state)


def _make_groups(state: LabState) -> None:
    for folder in map(Path, state.cgroups):
        cgroups.make_parent(folder)
    for machine in state.machines:
        for folder in machine.folders:
            folder.mkdir(exist_ok=True)
        cgroups.limit_memory(machine.folders, state.memory)
        cgroups.limit_cpu(machine.folders, machine.cpu)


END_LIMIT = 10.0


def kill_and_wait(machines: list[MachineState]) -> None:
    for machine in machines:
        if machine.alive:  # its first process: when that ends, all others end too
            with suppress(ProcessLookupError):
                os.kill(machine.pid, signal.SIGKILL)
    end = time.monotonic() + END_LIMIT
    while any(machine.alive for machine in machines):
        if time.monotonic() > end:
            names = ", ".join(m.name for m in machines if m.alive)
            raise MachineError(f"{names} did not end within {END_LIMIT:g} s", "Try again.")
        time.sleep(0.01)


def remove(state: LabState) -> None:
    """Remove the lab; processes first, because they keep everything else in use."""
    kill_and_wait(state.machines)
    folders = [folder for machine in state.machines for folder in machine.folders]
    for folder in folders:
        cgroups.kill_all(folder)
    network.remove_network(state)
    for folder in [*folders, *map(Path, state.cgroups)]:
        cgroups.remove(folder)
    # Remove the blueprint too, unless a user has changed it since.
    if state.blueprint is None:
        return
    path = Path(state.blueprint)
    with suppress(FileNotFoundError):
        if hashlib.sha256(path.read_bytes()).hexdigest() == state.blueprint_digest:
            path.unlink()
