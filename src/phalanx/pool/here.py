"""This machine as a member of a pool."""

from __future__ import annotations

from phalanx.pool.contradictions import contradictions
from phalanx.pool.facts import Facts, measure
from phalanx.pool.machine import HERE, Machine, Pool


def this_machine() -> Pool:
    """The pool without a blueprint: this machine alone, named ``here``."""
    machine, warnings = fitted(Machine(name=HERE, host=HERE), measure())
    return Pool(machines=(machine,), source="this machine", warnings=tuple(warnings))


def fitted(machine: Machine, facts: Facts) -> tuple[Machine, list[str]]:
    """``machine`` with what it was found to have, and warnings of what its blueprint promises in
    vain: it may take less than there is; more than there is, only if emulated."""
    warnings = [
        str(each)
        for each in contradictions(
            machine, cores=facts.cores, memory=facts.memory or None, gpus=facts.gpus
        )
    ]
    if facts.gpus > facts.usable_gpus:
        warnings.append(
            f"this machine has {facts.gpus} GPUs, but the installed torch is a CPU build"
        )

    def taken(said: int | None, found: int) -> int:
        return found if said is None or (said > found and not machine.emulated) else said

    cores = taken(machine.cores, facts.cores)
    gpus = taken(machine.gpus if "gpus" in machine.model_fields_set else None, facts.usable_gpus)
    # A quota is time on any core. A machine pinned to the first ones would share them with all
    # others of this host pinned alike: containers, emulated machines.
    free = facts.cores < len(facts.cpu_ids)
    update = {
        "cores": cores,
        "cpu_ids": () if free else facts.cpu_ids[:cores],
        "gpus": gpus,
        "memory": taken(machine.memory, facts.memory) if facts.memory else machine.memory,
        "real_gpus": min(gpus, facts.usable_gpus),
    }
    return machine.model_copy(update=update), warnings
