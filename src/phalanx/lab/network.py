"""The lab's network: one bridge, and for each machine a link to it with its own rate.

Frames have 1500 bytes, as on an ordinary network. The token bucket is small, because what it
holds passes at full speed: a segment of 16 KiB has to fit, and what arrives while the kernel's
timer is late (0.3 ms), so that the rate is kept on a busy host too.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.lab.needs import call
from phalanx.lab.state import LabState, MachineState

NETWORKS = ipaddress.ip_network("10.77.0.0/16")
PREFIX = 24
MACHINES_AT_MOST = 200
MTU = 1500
LARGEST_SEGMENT = 16 * 1024
SMALLEST_BUCKET = 20 * 1024
BUCKET_SECONDS = 0.0003
QUEUE_SECONDS = 0.02
SMALLEST_QUEUE = 128 * 1024


def choose_subnet() -> ipaddress.IPv4Network:
    """A network that no interface or route of this host overlaps."""
    addresses = json.loads(call(["ip", "-json", "-4", "addr"]) or "[]")
    routes = json.loads(call(["ip", "-json", "-4", "route"]) or "[]")
    found = [f"{a['local']}/{a['prefixlen']}" for i in addresses for a in i.get("addr_info", [])]
    found += [route["dst"] for route in routes if route["dst"] != "default"]
    taken = [ipaddress.IPv4Network(each, strict=False) for each in found]
    for network in NETWORKS.subnets(new_prefix=PREFIX):
        if isinstance(network, ipaddress.IPv4Network) and not any(map(network.overlaps, taken)):
            return network
    raise InputError(f"no subnet of {NETWORKS} is free", "End a lab: phalanx lab down")


def choose_bridge() -> str:
    """A name that no interface has; those of the machines' links begin with it."""
    while Path("/sys/class/net", name := f"plab{secrets.token_hex(3)}").exists():
        pass
    return name


def make_bridge(state: LabState) -> None:
    bridge = state.bridge
    _batch(
        f"link add {bridge} mtu {MTU} type bridge mcast_snooping 0 forward_delay 0",
        f"link set {bridge} addrgenmode none alias phalanx-lab-{state.name}",
        f"addr add {state.gateway}/{PREFIX} dev {bridge}",
        f"link set {bridge} up",
    )


def make_link(state: LabState, machine: MachineState) -> None:
    """A cable from the bridge to ``eth0`` of the machine, whose first process is running."""
    ours, pid = machine.interface, str(machine.pid)
    small = f"gso_max_size {LARGEST_SEGMENT}" if machine.rate else ""
    _batch(
        f"link add {ours} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {pid}",
        f"link set {ours} master {state.bridge} addrgenmode none {small}",
        f"link set {ours} alias phalanx-lab-{state.name}",
        f"link set {ours} up",
    )
    _batch(
        "link set lo up",
        f"link set eth0 addrgenmode none {small}",
        f"addr add {machine.address}/{PREFIX} dev eth0",
        "link set eth0 up",
        pid=pid,
    )
    if machine.rate:
        shape(ours, machine.rate)
        shape("eth0", machine.rate, pid=pid)


def shape(interface: str, rate: float, pid: str | None = None) -> None:
    """Let ``interface`` send at most ``rate`` bits per second."""
    queue = max(SMALLEST_QUEUE, int(rate / 8 * QUEUE_SECONDS))
    bucket = max(SMALLEST_BUCKET, int(rate / 8 * BUCKET_SECONDS))
    words = f"rate {rate:.0f}bit burst {bucket} limit {queue + bucket}".split()
    place = ["qdisc", "replace", "dev", interface, "root", "tbf"]
    call([*_inside(pid), "tc", *place, *words])


def set_link(machine: MachineState, up: bool) -> None:
    call(["ip", "link", "set", machine.interface, "up" if up else "down"])


def remove_network(state: LabState) -> None:
    for name in [*(machine.interface for machine in state.machines), state.bridge]:
        if Path("/sys/class/net", name).exists():
            # A link may vanish between the two, with the machine at its other end.
            call(["ip", "link", "delete", name], fails=False)


def counters(pid: int) -> tuple[int, int]:
    """Bytes that ``eth0`` of the machine has received and sent."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            columns = figures.split()
            return int(columns[0]), int(columns[8])
    raise InputError("the machine has no eth0", "End the lab and start it again.")


def _batch(*lines: str, pid: str | None = None) -> None:
    call([*_inside(pid), "ip", "-batch", "-"], "\n".join(lines) + "\n")


def _inside(pid: str | None) -> Sequence[str]:
    return [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]
