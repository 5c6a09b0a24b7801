"""A pool as it was measured: figures win over what the blueprint says, and that over guesses."""

from __future__ import annotations

from typing import Any

from phalanx.pool.contradictions import contradictions
from phalanx.pool.machine import Machine, Pool
from phalanx.pool.measured import MachineRates, Probe


def as_measured(pool: Pool, probe: Probe | None) -> Pool:
    """The pool that planning reads; what the blueprint promises in vain becomes a warning.

    Less than there is may be wanted, so that a smaller figure of the blueprint stands. Emulated
    machines stay what they pretend to be.
    """
    if probe is None:
        return pool
    rates = {m.name: probe.rates_of(m.name) for m in pool.machines}
    warnings = [str(each) for m in pool.machines for each in _against(m, rates[m.name])]
    speeds = {name: each.speed if each else None for name, each in rates.items()}
    comparable = all(speeds.values())
    machines = []
    for machine in pool.machines:
        update = _update(machine, rates[machine.name])
        if comparable and not any(m.emulated for m in pool.machines):
            update["speed"] = speeds[machine.name]
        machines.append(machine.model_copy(update=update) if update else machine)
    return pool.model_copy(
        update={"machines": tuple(machines), "warnings": (*pool.warnings, *warnings)}
    )


def _against(machine: Machine, rates: MachineRates | None) -> list[Any]:
    if rates is None or machine.is_here:  # of this machine the blueprint's reader warns itself
        return []
    return contradictions(machine, cores=rates.cores, memory=rates.memory, gpus=len(rates.gpus))


def _update(machine: Machine, rates: MachineRates | None) -> dict[str, Any]:
    if rates is None or machine.emulated or machine.is_here:
        return {}
    found: dict[str, Any] = {}
    if machine.cores is None or machine.cores > rates.cores:
        found["cores"] = rates.cores
    if rates.memory and (machine.memory is None or machine.memory > rates.memory):
        found["memory"] = rates.memory
    if "gpus" not in machine.model_fields_set or machine.gpus > len(rates.gpus):
        found["gpus"] = len(rates.gpus)
    return found
