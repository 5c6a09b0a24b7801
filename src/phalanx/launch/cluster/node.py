"""On a node of a cluster: its address, and the process of one worker."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from phalanx.agent.machine.reach import free_port
from phalanx.core import hosts_settings as hosts
from phalanx.core import settings
from phalanx.core.addresses import look_up, own_addresses
from phalanx.core.errors import InputError
from phalanx.core.hosts_settings import endpoint
from phalanx.core.run_folder.run_key import KEY_FILE_VARIABLE, KEY_VARIABLE
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.cluster.seats import Meeting
from phalanx.launch.launchers.launcher import WorkerCommand

LOOPBACK = "127.0.0.1"


def own_address(name: str, *, alone: bool) -> str:
    """Where the other nodes reach this one: ``PHALANX_ADDRESS``, or what its name stands for.

    ``alone``: there are no other nodes, so nothing listens where others could connect.
    """
    if alone:
        return LOOPBACK
    own, said = own_addresses(), os.environ.get(hosts.ADDRESS, "").strip()
    try:
        if said:
            network = ipaddress.ip_network(said, strict=False)
            found = [a for a in sorted(own) if ipaddress.ip_address(a) in network]
        else:
            found = look_up(name)
    except ValueError:
        found = []
    for address in found:
        if address in own and not ipaddress.ip_address(address).is_loopback:
            return address
    raise InputError(
        f"{name}: its address for the other nodes is not known ({said or name})",
        f"Set {hosts.ADDRESS} to the nodes' network, such as 10.0.0.0/24.",
    )


def known_address(place: str) -> str:
    """Of this node, by the host (and port) under which a cluster's other processes know it."""
    if given := os.environ.get(hosts.ADDRESS):
        return given
    host, own = place.rpartition(":")[0].strip("[]") or place, own_addresses()
    for address in [host, *look_up(host)]:
        if address in own:
            return address
    raise InputError(
        f"{host}, as Spark calls this machine, leads to no address of it",
        f"Set SPARK_LOCAL_IP there, or {hosts.ADDRESS} in the environment of Spark's workers.",
    )


def port_of(address: str) -> int:
    with ExitStack() as held:
        return free_port(held, address)


def clock_ahead() -> float:
    return time.monotonic() - time.time()


def meeting_variables(
    meeting: Meeting, address: str, key: Mapping[str, str], local: tuple[int, int]
) -> dict[str, str]:
    """What connects a worker to the others; ``local``: its number on its node, and how many."""
    return {
        hosts.MEET: endpoint(meeting.address, meeting.port),
        hosts.ADDRESS: address,
        hosts.MEMBERS: ",".join(meeting.members),
        hosts.LOCAL: str(local[0]),
        hosts.LOCALS: str(local[1]),
        **({hosts.TLS: "1"} if meeting.tls else {}),
        **key,
    }


def start_worker(
    worker: WorkerCommand, env: Mapping[str, str], paths: RunPaths, *, cwd: Path | None, apart: bool
) -> subprocess.Popen[bytes]:
    """It ends with this process. ``apart``: in a process group of its own."""
    strange = (settings.ARENA, KEY_VARIABLE, KEY_FILE_VARIABLE)
    own = {name: value for name, value in os.environ.items() if name not in strange}
    added = {settings.STARTED: repr(time.monotonic()), settings.CONTROLLER: str(os.getpid())}
    with (paths.folder / worker.log).open("ab") as log:
        return subprocess.Popen(
            worker.argv,
            env={**own, **env, **added},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=apart,
        )
