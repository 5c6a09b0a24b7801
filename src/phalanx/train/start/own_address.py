"""Finds the address at which other machines reach this one: configured, never guessed.

The interface comes from ``PHALANX_ADDRESS`` or from the pool. A name is looked up once, here, and
has to resolve to an address of this machine: many systems resolve their own name to loopback, which
no other machine reaches.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from phalanx.core import hosts_settings as hosts
from phalanx.core.addresses import look_up
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.pool.machine import Machine, Pool

Lookup = Callable[[str], Sequence[str]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_LOOPBACK_NAMES = ("localhost", "ip6-localhost", "localhost.localdomain")
_REMEDY = (
    f"Set {hosts.ADDRESS} to this machine's address, or to the network it is in "
    f"(10.0.0.0/24, the same for all), or {hosts.POOL} to a blueprint that has this machine."
)


def own_address(
    variables: Mapping[str, str],
    pool: Pool | None,
    hostname: str,
    meet_at: str,
    *,
    addresses: Sequence[str],
    lookup: Lookup = look_up,
) -> str:
    """Return the address of this machine (which has ``addresses``) that the others connect to."""
    told = variables.get(hosts.ADDRESS, "").strip()
    if told:
        return _told(told, addresses)
    if is_loopback(meet_at):
        return "::1" if _read(meet_at) == ipaddress.IPv6Address("::1") else "127.0.0.1"
    machine = machine_of(pool, hostname, addresses) if pool else None
    if machine is not None and not machine.is_here:
        return _of_machine(machine, addresses, lookup)
    if _among(meet_at, addresses):
        return meet_at  # process 0 is on this machine, and was told where to be met
    if pool is None:
        raise InputError("this machine's address is not known", _REMEDY)
    if machine is not None:
        raise InputError(
            f"{pool.source}: machine '{machine.name}' is 'here', which other machines cannot use",
            f"Set its 'host' to its address, or set {hosts.ADDRESS}.",
        )
    raise InputError(
        f"{pool.source} has no machine '{hostname}', nor one at its addresses", _REMEDY
    )


def meeting_address(meet_at: str, pool: Pool | None) -> str:
    """Return where process 0 is met: a machine's name in the pool stands for its host."""
    for machine in pool.machines if pool else ():
        if machine.name == meet_at and not machine.is_here:
            return _bare(machine.host)
    return meet_at


def machine_of(pool: Pool, hostname: str, addresses: Sequence[str]) -> Machine | None:
    """Return the pool's machine that is this one: by its address, else by its name."""
    here = [m for m in pool.machines if _among(_bare(m.host), addresses)]
    names = {hostname.lower(), hostname.lower().partition(".")[0]}
    named = [m for m in pool.machines if {m.name.lower(), m.host.lower()} & names]
    local = [m for m in pool.machines if m.is_here]
    # All machines have loopback addresses, so a name says more.
    real = [m for m in here if not is_loopback(_bare(m.host))]
    return next(iter([*real, *named, *here, *local]), None)


def is_loopback(host: str) -> bool:
    address = _read(host)
    return host.lower() in _LOOPBACK_NAMES if address is None else address.is_loopback


def _told(text: str, addresses: Sequence[str]) -> str:
    if "/" in text:
        return _in_network(text, addresses)
    address = _read(text)
    if address is None:
        raise InputError(
            f"{hosts.ADDRESS} must be an address or a network, not '{text[:60]}'",
            "For example: 10.0.0.2, or 10.0.0.0/24",
        )
    if address.is_unspecified or not _among(text, addresses):
        raise InputError(
            f"{hosts.ADDRESS} is {text}, which is not an address of this machine", _these(addresses)
        )
    return text


def _in_network(text: str, addresses: Sequence[str]) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InputError(
            f"{hosts.ADDRESS} cannot be the network '{text[:60]}'", "For example: 10.0.0.0/24"
        ) from None
    inside = [a for a in addresses if (read := _read(a)) is not None and read in network]
    if len(inside) != 1:
        many = "more than one address" if inside else "no address"
        raise InputError(
            f"this machine has {many} in {network} ({hosts.ADDRESS})",
            f"Narrow it: {', '.join(inside)}" if inside else _these(addresses),
        )
    return inside[0]


def _of_machine(machine: Machine, addresses: Sequence[str], lookup: Lookup) -> str:
    """Return the address in the pool, or the one to which its name there resolves."""
    host = _bare(machine.host)
    found = [host] if _read(host) is not None else list(lookup(host))
    usable = [a for a in found if _among(a, addresses) and (a == host or not is_loopback(a))]
    if usable:
        return usable[0]
    known = ", ".join(found) or "unknown"
    raise InputError(
        f"the pool's '{machine.name}' is at {host} ({known}), not an address of this machine"
        if known != host
        else f"the pool's '{machine.name}' is at {host}, not an address of this machine",
        f"Correct its 'host', or set {hosts.ADDRESS}. {_these(addresses)}",
    )


def _these(addresses: Iterable[str]) -> str:
    real = [a for a in addresses if not is_loopback(a) and not a.lower().startswith("fe80:")]
    return f"This machine has {', '.join(real)}." if real else "This machine has loopback only."


def _among(host: str, addresses: Iterable[str]) -> bool:
    address = _read(host)
    if address is None:
        return False
    return address in [_read(a) for a in addresses] or address.is_loopback


def _read(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(_bare(text))
    except ValueError:
        return None


def _bare(host: str) -> str:
    return host.strip("[]")
