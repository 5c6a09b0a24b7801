"""The way to each machine: its jump host, which may itself have a jump host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.pool.machine import Machine, read_jump


class JumpError(Exception):
    """An impossible jump host; ``machine`` names the machine that has it."""

    def __init__(self, machine: str, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.machine, self.problem, self.remedy = machine, problem, remedy


def keys_beside(blueprint: Path) -> Path:
    """Return the file of a pool's host keys, in OpenSSH's format, such as ``pool.known_hosts``."""
    return blueprint.with_suffix(".known_hosts")


def resolve_ways(machines: Sequence[Machine], blueprint: Path) -> list[Machine]:
    """Return the machines, each with the pool's file of host keys and with its jump host."""
    keys = str(keys_beside(blueprint).absolute())
    known = {m.name: m.model_copy(update={"known_keys": keys}) for m in machines}
    return [_resolved(machine, known, ()) for machine in known.values()]


def _resolved(machine: Machine, known: dict[str, Machine], before: tuple[str, ...]) -> Machine:
    if machine.jump is None:
        return machine
    if machine.name in before:
        loop = " - ".join([*before[before.index(machine.name) :], machine.name])
        raise JumpError(machine.name, f"the jump hosts form a loop: {loop}", "Remove one of them.")
    other = known.get(machine.jump)
    if other is None:
        return machine.model_copy(update={"via": _outside(machine, machine.jump)})
    if other.is_here or machine.is_here:
        raise JumpError(
            machine.name,
            f"machine '{machine.name}': 'here' cannot have or be a jump host",
            "Remove 'jump'.",
        )
    return machine.model_copy(update={"via": _resolved(other, known, (*before, machine.name))})


def _outside(machine: Machine, jump: str) -> Machine:
    """Make a jump host that is not in the pool; it never gets the machine's password."""
    try:
        user, host, port = read_jump(jump)
    except ValueError:
        raise JumpError(
            machine.name,
            f"machine '{machine.name}': '{jump[:60]}' is neither a machine of the pool nor a host",
            "Give a machine's name, or [user@]host[:port].",
        ) from None
    return Machine(
        name=f"{machine.name[:56]}.jump",
        host=host,
        port=port,
        user=user or machine.user,
        key=machine.key,
        known_keys=machine.known_keys,
    )
