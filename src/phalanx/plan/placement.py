"""The placement of workers: how many on each machine, and the cores and device of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.pool.machine import Machine


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one worker. No ``cpus`` means that it is not pinned."""

    rank: int
    cpus: list[int]
    threads: int
    device: str


class PlannedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that takes part, with its workers; ``cores`` is null when unknown."""

    name: str
    host: str
    cores: int | None
    gpus: int
    slots: list[Slot]
    emulated: bool = False


def natural_workers(machines: Sequence[Machine]) -> int:
    """Return the default number: one for each GPU or machine without GPUs, and ``cpu_workers``."""
    return sum(_natural(m) for m in machines)


def _natural(machine: Machine) -> int:
    return machine.gpus + machine.cpu_workers if machine.gpus else 1


def _device(machine: Machine, index: int, workers: int) -> str:
    """Return a worker's device: GPUs first, then the CPU if the blueprint has ``cpu_workers``."""
    on_gpus = max(machine.gpus, workers - machine.cpu_workers)
    if not machine.gpus or index >= on_gpus:
        return "cpu"
    gpu = index % machine.gpus
    pretended = machine.real_gpus is not None and gpu >= machine.real_gpus
    return "cpu" if pretended else f"cuda:{gpu}"


def share_out(machines: Sequence[Machine], workers: int) -> list[int]:
    """Return how many of ``workers`` each machine gets.

    GPUs come first, one worker each, then machines without; the machine with the fewest workers
    for its GPUs or cores gets the next of those that remain.
    """
    counts = [0] * len(machines)
    first_round = [i for i, m in enumerate(machines) for _ in range(m.gpus)]
    first_round += [i for i, m in enumerate(machines) for _ in range(_natural(m) - m.gpus)]
    for index in first_round[:workers]:
        counts[index] += 1
    for _ in range(workers - len(first_round)):
        loads = [c / (m.gpus or m.cores or 1) for c, m in zip(counts, machines, strict=True)]
        counts[loads.index(min(loads))] += 1
    return counts


def place(
    machine: Machine, workers: int, first_rank: int, *, instead_of: int = 1
) -> PlannedMachine:
    """Make ``workers`` slots on ``machine``, of equal size, with ranks from ``first_rank`` on.

    ``instead_of``: how many workers' cores each slot has, if one replaces several.
    """
    parts = workers * instead_of
    threads = max(1, (machine.cores or 1) // parts * instead_of)
    slots = [
        Slot(
            rank=first_rank + i,
            cpus=[c for k in range(instead_of) for c in _cpus(machine, i * instead_of + k, parts)],
            threads=(machine.cores or 1) if crowded(machine, parts) and instead_of > 1 else threads,
            device=_device(machine, i, workers),
        )
        for i in range(workers)
    ]
    return PlannedMachine(
        name=machine.name,
        host=machine.host,
        cores=machine.cores,
        gpus=machine.gpus,
        slots=slots,
        emulated=machine.emulated,
    )


def crowded(machine: Machine, workers: int) -> bool:
    """Whether workers outnumber cores: then pinning would only keep them from sharing cores."""
    return machine.cores is not None and workers > machine.cores


def _cpus(machine: Machine, index: int, workers: int) -> list[int]:
    """Return a worker's cores, an equal share: in lockstep the smallest one sets the pace."""
    share = len(machine.cpu_ids) // workers
    if crowded(machine, workers):
        return []
    return sorted(machine.cpu_ids[index * share : (index + 1) * share])
