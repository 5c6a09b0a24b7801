"""Connections that have proved nothing yet, and which of them is closed when there are too many.

Addresses of the run's own machines have places of their own, which others cannot take. Everybody
else shares ``MAX_PENDING``, a source at most ``QUOTA`` of them. When all are taken, one of the
source that has most of them goes, chosen at random: the oldest would be the member whose way is
longest.
"""

from __future__ import annotations

import ipaddress
import random
from collections import Counter
from collections.abc import Iterable

from phalanx.sync.connect.pending_connection import PendingConnection

MAX_PENDING = 128
QUOTA = 32
MEMBER_QUOTA = 128
_NETWORK_BITS = 64


class Lobby:
    """By the number of their connection."""

    def __init__(self) -> None:
        self.pending: dict[int, PendingConnection] = {}
        self._members: frozenset[str] = frozenset()

    def reserve(self, addresses: Iterable[str]) -> None:
        """Keep places for these addresses; what is no address (a name) is left out."""
        self._members |= {plain for each in addresses if (plain := _plain(each))}

    def source(self, address: str) -> str:
        """What is counted together: an address, of strangers' IPv6 the network it is in."""
        plain = _plain(address)
        if ":" not in plain or plain in self._members:
            return plain
        return str(ipaddress.ip_network((plain, _NETWORK_BITS), strict=False))

    def who_goes(self, source: str) -> int | None:
        """The one that makes room for another of ``source``; ``None`` while there is room."""
        waiting = {n: g.source for n, g in self.pending.items() if not g.proved}
        same = [number for number, other in waiting.items() if other == source]
        if source in self._members:
            return random.choice(same) if len(same) >= MEMBER_QUOTA else None
        if len(same) >= QUOTA:
            return random.choice(same)
        strangers = {n: other for n, other in waiting.items() if other not in self._members}
        return _one_of_the_most(strangers) if len(strangers) >= MAX_PENDING else None

    def anybody(self) -> int | None:
        """The one that goes where nothing else is left to give."""
        return _one_of_the_most({n: g.source for n, g in self.pending.items() if not g.proved})


def _one_of_the_most(waiting: dict[int, str]) -> int | None:
    counts = Counter(waiting.values())
    most = max(counts.values(), default=0)
    return random.choice([n for n, source in waiting.items() if counts[source] == most] or [None])


def _plain(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address.strip("[]").partition("%")[0]))
    except ValueError:
        return ""
