"""Decides which process is chief, worker or server, and where it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.spec import parse_spec
from phalanx.launch.frameworks.framework import (
    CHIEF,
    EVALUATOR,
    SERVER,
    WORKER,
    Framework,
    Places,
    Process,
)
from phalanx.plan.placement import place
from phalanx.plan.plan import Plan, PlannedMachine, Slot, make_plan
from phalanx.pool.machine import Machine

_ROLES = (CHIEF, WORKER, SERVER, EVALUATOR)
_FEWEST = 3
"""From this number of planned processes on, the chief and the server are among them."""
MOST = 1024


def read_roles(text: str) -> dict[str, int]:
    """Read ``chief=1,worker=2,ps=1`` as numbers."""
    roles: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in _ROLES:
            raise InputError(f"unknown role '{name}'", did_you_mean(name, _ROLES))
        if not number.isdecimal() or not 1 <= int(number) <= MOST or name in roles:
            raise InputError(
                f"'{part.strip()}' is not a role with its number", "Try chief=1,worker=2,ps=1"
            )
        roles[name] = int(number)
    if WORKER not in roles:
        raise InputError("the roles have no worker", "Try chief=1,worker=2,ps=1")
    for role in (CHIEF, EVALUATOR):
        if roles.get(role, 1) > 1:
            raise InputError(f"the roles have {roles[role]} {role}s", f"Give one: {role}=1")
    return roles


def seat(plan: Plan, framework: Framework, asked: int | None) -> Plan:
    """Add a chief and a server to ``plan``, if the script needs them and no counts were given.

    ``asked`` is the number of workers that was asked for: all of them compute, so a chief is added
    on the first machine and a server on the last. Roles that were given are in the plan already.
    """
    many = sum(len(machine.slots) for machine in plan.machines) + framework.servers
    if not framework.has_servers or framework.roles or (asked is None and many >= _FEWEST):
        return plan
    machines = list(plan.machines)
    machines[0] = _with(machines[0], [_unpinned(), *machines[0].slots])
    if not framework.servers:
        machines[-1] = _with(machines[-1], [*machines[-1].slots, _unpinned()])
    seated, rank = [], 0
    for machine in machines:
        slots = [
            msgspec.structs.replace(slot, rank=rank + i) for i, slot in enumerate(machine.slots)
        ]
        seated.append(_with(machine, slots))
        rank += len(slots)
    added = "a chief" if framework.servers else "a chief and a parameter server"
    reasons = [*plan.reasons, f"{added} in addition to the workers"]
    return msgspec.structs.replace(plan, machines=seated, workers=rank, reasons=reasons)


def plan_for(
    machines: Sequence[Machine],
    framework: Framework | None,
    asked: int | None,
    *,
    strategy: str,
    selection: str,
    batch: int | None,
    servers: Sequence[str] = (),
) -> Plan:
    """Plan a run with ``asked`` workers, with seats for all roles of the framework.

    ``servers`` are the machines that have a parameter server and no worker.
    """
    apart = [machine for machine in machines if machine.name in servers]
    machines = [machine for machine in machines if machine.name not in servers]
    roles = framework.roles if framework else {}
    if framework and framework.is_alone:
        machines, asked = machines[:1], 1
    plan = make_plan(
        machines,
        workers=sum(roles.values()) - (len(apart) if SERVER in roles else 0) if roles else asked,
        strategy=strategy,
        selection=selection,
        batch=batch,
    )
    if framework and framework.is_alone:
        return _on_all_devices(plan, machines[0])
    return _with_servers(seat(plan, framework, asked) if framework else plan, framework, apart)


def _with_servers(plan: Plan, framework: Framework | None, apart: Sequence[Machine]) -> Plan:
    """Add the machines ``apart``, each with a server, after all workers, if the run has servers."""
    phases = parse_spec(plan.strategy).phases
    ours = plan.workers > 1 and any("servers" in phase.traits.keys for phase in phases)
    if not apart or not (framework.has_servers if framework else ours):
        unused = [f"{machine.name} unused: the run has no parameter servers" for machine in apart]
        return msgspec.structs.replace(plan, reasons=[*plan.reasons, *unused])
    ranks = range(len(plan.seats), len(plan.seats) + len(apart))
    placed = [
        _with(place(machine, 1, rank), [msgspec.structs.replace(_unpinned(), rank=rank)])
        for machine, rank in zip(apart, ranks, strict=True)
    ]
    count = plan.workers + len(apart) * (framework is not None)
    return msgspec.structs.replace(plan, machines=[*plan.machines, *placed], workers=count)


def _on_all_devices(plan: Plan, machine: Machine) -> Plan:
    """Give the only process of ``plan`` all cores and GPUs of ``machine``."""
    (slot,) = plan.machines[0].slots
    whole = msgspec.structs.replace(
        slot, cpus=[], threads=machine.cores or slot.threads,
        device=f"cuda:{','.join(map(str, range(machine.gpus)))}" if machine.gpus else "cpu",
    )  # fmt: skip
    reasons = [*plan.reasons, f"this strategy of TensorFlow uses one machine: {machine.name}"]
    machines = [_with(plan.machines[0], [whole])]
    return msgspec.structs.replace(plan, machines=machines, reasons=reasons)


def roles_by_rank(framework: Framework, processes: int) -> list[str]:
    """Return the role of each rank: a chief first, then workers, servers, and last an evaluator."""
    if not framework.has_servers:
        evaluators = framework.roles.get(EVALUATOR, 0)
        return [WORKER] * (processes - evaluators) + [EVALUATOR] * evaluators
    servers = framework.servers or 1
    counts = framework.roles or {CHIEF: 1, WORKER: processes - 1 - servers, SERVER: servers}
    return [role for role in _ROLES for _ in range(counts.get(role, 0))]


def places_of(
    plan: Plan,
    framework: Framework,
    run: str,
    addresses: Mapping[str, str],
    ports: Mapping[int, int],
    interfaces: Mapping[str, str | None] | None = None,
) -> Places:
    """Return every process of ``plan``; addresses and interfaces by machine, ports by rank."""
    roles = roles_by_rank(framework, len(plan.seats))
    processes = [
        Process(
            rank=slot.rank,
            machine=machine.name,
            address=addresses[machine.name],
            local_index=machine.slots.index(slot),
            locals=len(machine.slots),
            port=ports[slot.rank],
            threads=slot.threads,
            device=slot.device,
            interface=(interfaces or {}).get(machine.name),
            role=role,
        )
        for (machine, slot), role in zip(plan.seats, roles, strict=True)
    ]
    return Places(tuple(processes), run)


def _with(machine: PlannedMachine, slots: list[Slot]) -> PlannedMachine:
    return msgspec.structs.replace(machine, slots=slots)


def _unpinned() -> Slot:
    return Slot(rank=-1, cpus=[], threads=1, device="cpu")
