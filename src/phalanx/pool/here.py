"""Compare machines with their blueprint: measured figures override the blueprint's, and these
override guesses."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.machine import facts
from phalanx.agent.machine.gpus import count_gpus
from phalanx.pool.machine import HERE, Machine, Pool
from phalanx.pool.measured import Probe


@dataclass(frozen=True)
class Facts:
    """Cores that may be used at once, their numbers, bytes of memory, GPUs."""

    cores: int
    cpu_ids: tuple[int, ...]
    memory: int
    gpus: int
    usable_gpus: int
    """Fewer than ``gpus`` when the installed torch is a CPU build."""


def measure() -> Facts:
    ids = facts.cpu_ids()
    gpus = count_gpus()
    usable = gpus if gpus and torch_knows_gpus() else 0
    return Facts(facts.usable_cores(ids), tuple(ids), facts.memory() or 0, gpus, usable)


def torch_knows_gpus() -> bool:
    """Whether the installed torch is a CUDA build, judged by its files."""
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found else None
    return any(
        next((Path(folder) / "lib").glob("*torch_cuda*"), None) is not None
        for folder in folders or ()
    )


MEMORY_SLACK = 0.9
"""The least part of a blueprint's memory that must be there: the kernel keeps some for itself."""


class Contradiction(NamedTuple):
    """A field of which the machine has less; ``cause`` and ``remedy`` are words for people."""

    field: str
    cause: str
    remedy: str


def contradictions(
    machine: Machine, *, cores: int | None, memory: int | None, gpus: int | None
) -> list[Contradiction]:
    """Return what the blueprint promises and the machine does not have.

    A blueprint may promise less than there is, and any figure for an emulated machine.
    """
    if machine.emulated:
        return []
    found = []
    for field, said, there, least in (
        ("gpus", machine.gpus if "gpus" in machine.model_fields_set else 0, gpus, 1.0),
        ("cores", machine.cores, cores, 1.0),
        ("memory", machine.memory, memory, MEMORY_SLACK),
    ):
        if said is not None and there is not None and there < said * least:
            remedy = f"Correct '{field}'"
            remedy += ", or set emulated: yes if that is intended." if field == "gpus" else "."
            promised = _words(field, said) + " of memory" * (field == "memory")
            cause = f"the blueprint says {promised}, the machine has {_words(field, there)}"
            found.append(Contradiction(field, f"{machine.name}: {cause}", remedy))
    return found


def _words(field: str, number: int) -> str:
    if field == "memory":
        return f"{number / 2**30:.1f} GiB"
    word = {"gpus": "GPU", "cores": "core"}[field] + "s" * (number != 1)
    return f"{number or 'no'} {word}"


def this_machine() -> Pool:
    """The pool without a blueprint: this machine alone, named ``here``."""
    machine, warnings = fitted(Machine(name=HERE, host=HERE), measure())
    return Pool(machines=(machine,), source="this machine", warnings=tuple(warnings))


def fitted(machine: Machine, facts: Facts) -> tuple[Machine, list[str]]:
    """Return ``machine`` with its measured figures, and warnings where its blueprint promises more.
    A smaller figure of the blueprint is kept; a larger one only if the machine is emulated."""
    warnings = [
        f"{each.cause}. {each.remedy}"
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
    # A quota is time on any core. Workers pinned to the first cores would share these with other
    # containers or emulated machines of this host that are pinned to the same ones.
    free = facts.cores < len(facts.cpu_ids)
    update = {
        "cores": cores,
        "cpu_ids": () if free else facts.cpu_ids[:cores],
        "gpus": gpus,
        "memory": taken(machine.memory, facts.memory) if facts.memory else machine.memory,
        "real_gpus": min(gpus, facts.usable_gpus),
    }
    return machine.model_copy(update=update), warnings


def as_measured(pool: Pool, probe: Probe | None) -> Pool:
    """Return the pool for planning, with measured figures, and warnings of false promises.

    A smaller figure of the blueprint is kept, because it may be intended. Emulated machines keep
    all figures of the blueprint.
    """
    if probe is None:
        return pool
    rates = {m.name: probe.rates_of(m.name) for m in pool.machines}
    speeds = {name: each.speed if each else None for name, each in rates.items()}
    comparable = all(speeds.values()) and not any(m.emulated for m in pool.machines)
    machines, warnings = [], list(pool.warnings)
    for machine in pool.machines:
        found = rates[machine.name]
        # The blueprint's reader has warned about this machine already.
        if found is not None and not machine.emulated and not machine.is_here:
            gpus = len(found.gpus)
            facts = Facts(found.cores, (), found.memory or 0, gpus, gpus)
            machine, notes = fitted(machine, facts)
            warnings += notes
        if comparable:
            machine = machine.model_copy(update={"speed": speeds[machine.name]})
        machines.append(machine)
    return pool.model_copy(update={"machines": tuple(machines), "warnings": tuple(warnings)})
