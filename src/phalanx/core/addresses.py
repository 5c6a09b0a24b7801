"""The addresses of this machine, and the addresses of host names."""

from __future__ import annotations

import socket

import psutil


def own_addresses() -> list[str]:
    """Return every address of this machine, loopback included."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = [a for each in psutil.net_if_addrs().values() for a in each if a.family in families]
    return [one.address.partition("%")[0] for one in found]


def look_up(name: str) -> list[str]:
    """Return the addresses of the host ``name``; none for an unknown name."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers))
