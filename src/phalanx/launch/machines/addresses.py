"""Finds the address at which other machines reach a machine, by pure functions."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from phalanx.pool.machine import Machine
from phalanx.pool.machine_facts import MachineFacts


def address_for_others(machine: Machine, facts: MachineFacts, reached_at: str | None) -> str:
    """Return the blueprint's ``address``, else ``reached_at`` if the machine's interfaces have it.

    With address translation (a cloud's public address) they do not: then return an inner address,
    if possible of the default interface. ``reached_at`` is the address that connections used.
    """
    if machine.address is not None:
        return machine.address.strip("[]")
    if reached_at and any(own.address == reached_at for own in facts.addresses):
        return reached_at
    inner = _by_usefulness(facts)
    return inner[0] if inner else (reached_at or "127.0.0.1")


def _by_usefulness(facts: MachineFacts) -> list[str]:
    def worth(place: tuple[str, str]) -> tuple[bool, bool]:
        interface, address = place
        return interface != facts.default_interface, ":" in address

    places = [(own.interface, own.address) for own in facts.addresses if _usable(own.address)]
    return [address for _, address in sorted(places, key=worth)]


def _usable(address: str) -> bool:
    try:
        read = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (read.is_loopback or read.is_link_local or read.is_unspecified)


def own_address(seen: Sequence[str | None]) -> str | None:
    """Return the address of this machine from which most of its connections came."""
    known = [each for each in seen if each]
    return max(known, key=known.count) if known else None
