"""The addresses of this machine, from the kernel alone."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

from phalanx.agent.machine.control_groups import read_text

SIOCGIFADDR = 0x8915


def addresses() -> list[dict[str, str]]:
    """Every address with its interface; loopback, and those of the link only, are left out."""
    if not sys.platform.startswith("linux"):
        return []
    return _version_4() + _version_6()


def _version_4() -> list[dict[str, str]]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # it has none
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found.append({"interface": name, "address": address})
    return found


def _version_6() -> list[dict[str, str]]:
    """``/proc/net/if_inet6``: address, number, length of the prefix, scope (0: global), flags."""
    found = []
    for line in read_text("/proc/net/if_inet6").splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[3] == "00":
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
            found.append({"interface": fields[5], "address": address})
    return found


def default_interface() -> str:
    """That of the way to the rest of the world; empty when there is none."""
    for line in read_text("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == "00000000" and fields[7] == "00000000":
            return fields[0]
    return ""
