"""Runs on a node of a cluster: finds the node's address, and starts one worker's process."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from phalanx.agent.machine.reach import free_port
from phalanx.core import hosts_settings as hosts
from phalanx.core import settings
from phalanx.core.addresses import look_up, own_addresses
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_key import KEY_FILE_VARIABLE, KEY_VARIABLE
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import WorkerCommand

LOOPBACK = "127.0.0.1"


def own_address(place: str, *, alone: bool | None = None) -> str:
    """Return the address by which other nodes reach this one: ``PHALANX_ADDRESS``, or that of
    ``place``, the cluster's name or address (and port) for this node.

    ``alone``: there are no other nodes, so workers listen on loopback. ``None``: that is unknown,
    and workers of a cluster on loopback listen there too.
    """
    if alone:
        return LOOPBACK
    host, own = _host_of(place), own_addresses()
    said = os.environ.get(hosts.ADDRESS, "").strip()
    try:
        network = ipaddress.ip_network(said, strict=False) if said else None
    except ValueError:
        own, network = [], None
    found = [host, *look_up(host)]
    if network is not None:
        found = [address for address in sorted(own) if ipaddress.ip_address(address) in network]
    for address in found:
        if address in own and (alone is None or not ipaddress.ip_address(address).is_loopback):
            return address
    raise InputError(
        f"{said or host} leads to no address of this node that other nodes reach",
        f"Set {hosts.ADDRESS} to the nodes' network, such as 10.0.0.0/24, in the environment of "
        "the cluster's processes.",
    )


def _host_of(place: str) -> str:
    """Return the host without the port of ``name:7077`` or ``[::1]:7077``; ``::1`` has no port."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0] if place.count(":") == 1 else place


def port_of(address: str) -> int:
    with ExitStack() as held:
        return free_port(held, address)


def clock_ahead() -> float:
    return time.monotonic() - time.time()


def start_worker(
    worker: WorkerCommand, paths: RunPaths, *, cwd: Path | None, apart: bool
) -> subprocess.Popen[bytes]:
    """Start a worker that ends with this process; ``apart``: in a process group of its own."""
    strange = (settings.ARENA, KEY_VARIABLE, KEY_FILE_VARIABLE)
    own = {name: value for name, value in os.environ.items() if name not in strange}
    added = {settings.STARTED: repr(time.monotonic()), settings.CONTROLLER: str(os.getpid())}
    with (paths.folder / worker.log).open("ab") as log:
        return subprocess.Popen(
            worker.argv,
            env={**own, **worker.env, **added},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=apart,
        )
