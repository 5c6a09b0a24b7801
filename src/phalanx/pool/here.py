"""This machine as a member of a pool."""

from __future__ import annotations

from phalanx.pool.facts import Facts, measure
from phalanx.pool.machine import HERE, Machine, Pool


def this_machine() -> Pool:
    """The pool without a blueprint: this machine alone, named ``here``."""
    machine, warnings = on_this_machine(Machine(name=HERE, host=HERE))
    return Pool(machines=(machine,), source="this machine", warnings=tuple(warnings))


def on_this_machine(machine: Machine, facts: Facts | None = None) -> tuple[Machine, list[str]]:
    """``machine`` (``host: here``) with what was left unsaid measured, and warnings.

    What the blueprint says may take less than there is; more than there is, only if emulated.
    """
    facts = facts or measure()
    warnings: list[str] = []
    cores, ids = facts.cores, facts.cpu_ids
    if machine.cores is not None:
        ids = facts.cpu_ids[: machine.cores]
        cores = machine.cores
        if cores > facts.cores and not machine.emulated:
            warnings.append(_too_many(machine.name, "cores", cores, facts.cores))
            cores, ids = facts.cores, facts.cpu_ids
    if facts.cores < len(facts.cpu_ids):
        # A quota is time on any core. A machine pinned to the first ones would share them with all
        # others of this host pinned alike: containers, emulated machines.
        ids = ()
    gpus = machine.gpus if "gpus" in machine.model_fields_set else facts.usable_gpus
    if gpus > facts.usable_gpus and not machine.emulated:
        warnings.append(_too_many(machine.name, "gpus", gpus, facts.usable_gpus))
        gpus = facts.usable_gpus
    if facts.gpus > facts.usable_gpus:
        warnings.append(
            f"this machine has {facts.gpus} GPUs, but the installed torch is a CPU build"
        )
    memory = machine.memory or facts.memory
    update = {"cores": cores, "cpu_ids": ids, "gpus": gpus, "memory": memory}
    update["real_gpus"] = min(gpus, facts.usable_gpus)
    return machine.model_copy(update=update), warnings


def _too_many(name: str, what: str, said: int, found: int) -> str:
    return f"machine '{name}': {what} is {said}, but {found} can be used here; using {found}"
