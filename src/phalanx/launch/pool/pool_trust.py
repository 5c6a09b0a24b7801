"""Fetches the host key of each machine, and compares it with the keys that are known.

A connection is opened only until the key is seen, without a login. Jump hosts are the exception:
there is a login to them, so their keys have to be known before.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import asyncssh

from phalanx.core.errors import MachineError, PhalanxError
from phalanx.launch.ssh.known_keys import KnownKey, known_keys
from phalanx.launch.ssh.ssh_connect import (
    CONNECT_SECONDS,
    HOST_KEY_KINDS,
    OTHER_KEY,
    connect,
    unreachable,
)
from phalanx.pool.machine import Machine

Status = Literal["new", "known", "changed", "unseen"]


@dataclass(frozen=True)
class Shown:
    """The host key that one machine shows, and whether it is new, known or changed."""

    machine: Machine
    status: Status
    key: asyncssh.SSHKey | None = None
    place: str = ""
    """The place where a known key is written."""
    problem: PhalanxError | None = None

    @property
    def kind(self) -> str:
        return "" if self.key is None else self.key.get_algorithm()

    @property
    def fingerprint(self) -> str:
        return "" if self.key is None else self.key.get_fingerprint("sha256")


def in_waves(machines: Iterable[Machine]) -> list[list[Machine]]:
    """Group machines and their jump hosts, each once: jump hosts before the machines behind."""
    waves: list[dict[tuple[str, int], Machine]] = []
    for machine in machines:
        way = _way_to(machine)
        for depth, one in enumerate(way):
            if depth == len(waves):
                waves.append({})
            waves[depth].setdefault((one.host.lower(), one.port), one)
    return [list(wave.values()) for wave in waves]


def _way_to(machine: Machine) -> list[Machine]:
    if machine.is_here:
        return []
    return [*([] if machine.via is None else _way_to(machine.via)), machine]


async def look_at(machines: Sequence[Machine]) -> list[Shown]:
    """Fetch and compare the key of each machine; the results are in the order of machines."""
    return list(await asyncio.gather(*(_look_at_one(machine) for machine in machines)))


async def _look_at_one(machine: Machine) -> Shown:
    tunnel: asyncssh.SSHClientConnection | None = None
    try:
        if machine.via is not None:
            tunnel = await connect(machine.via)
        return await _judge(machine, tunnel)
    except PhalanxError as error:
        return Shown(machine, "unseen", problem=error)
    except TimeoutError:
        silent = MachineError(f"{machine.label} does not answer", _IS_IT_UP)
        return Shown(machine, "unseen", problem=silent)
    except (OSError, asyncssh.Error) as problem:
        return Shown(machine, "unseen", problem=unreachable(machine, problem))
    finally:
        if tunnel is not None:
            tunnel.abort()


_IS_IT_UP = "Check that it is up, and that this is its address."


async def _judge(machine: Machine, tunnel: asyncssh.SSHClientConnection | None) -> Shown:
    known = known_keys(machine)
    kinds = HOST_KEY_KINDS if machine.host_key else _kinds_of(known)
    first: asyncssh.SSHKey | None = None
    for kind in kinds:
        key = await _fetch(machine, kind, tunnel)
        first = first or key
        if key is None:
            continue
        place = _where_known(machine, key, known)
        if place:
            return Shown(machine, "known", key, place)
    first = first or await _fetch(machine, (), tunnel)
    if machine.host_key or known:
        return Shown(machine, "changed", first, problem=_changed(machine, first, known))
    if first is None:
        raise MachineError(f"{machine.label} shows no host key", _IS_IT_UP)
    return Shown(machine, "new", first)


def _kinds_of(known: Sequence[KnownKey]) -> list[tuple[str, ...]]:
    """Return the kinds of keys that are recorded; for an unknown machine the preferred one."""
    if not known:
        return [()]
    recorded = {each.kind for each in known}
    rsa = {"ssh-rsa"} & recorded
    kinds = [(each,) for each in sorted(recorded - rsa)]
    return [*kinds, ("rsa-sha2-512", "rsa-sha2-256")] if rsa else list(kinds)


async def _fetch(
    machine: Machine, kinds: tuple[str, ...], tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHKey | None:
    """Fetch a machine's host key; ``None`` if it has none of ``kinds``."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncssh.get_server_host_key(
                machine.host.strip("[]"),
                machine.port,
                config=None,
                server_host_key_algs=list(kinds) or [k for each in HOST_KEY_KINDS for k in each],
                tunnel=() if tunnel is None else tunnel,
            )
    except OTHER_KEY:
        if kinds:
            return None
        raise


def _where_known(machine: Machine, key: asyncssh.SSHKey, known: Sequence[KnownKey]) -> str:
    shown = key.get_fingerprint("sha256")
    if machine.host_key:
        same = hmac.compare_digest(shown.rstrip("="), machine.host_key.rstrip("="))
        return "the blueprint" if same else ""
    return next((each.place for each in known if each.fingerprint == shown), "")


def _changed(
    machine: Machine, key: asyncssh.SSHKey | None, known: Sequence[KnownKey]
) -> MachineError:
    shown = "no key at all" if key is None else key.get_fingerprint("sha256")
    if machine.host_key:
        place, expected = "the blueprint", machine.host_key
        remedy = "correct its host_key."
    else:
        place, expected = known[0].place, known[0].fingerprint
        remedy = "remove that line by hand."
    return MachineError(
        f"{machine.label} shows a changed host key: {shown}; {place} has {expected}",
        f"This may be an attack. If the machine was reinstalled, {remedy}",
    )
