"""A pool as it was measured: figures win over what the blueprint says, and that over guesses."""

from __future__ import annotations

from phalanx.pool.facts import Facts
from phalanx.pool.here import fitted
from phalanx.pool.machine import Pool
from phalanx.pool.measured import Probe


def as_measured(pool: Pool, probe: Probe | None) -> Pool:
    """The pool that planning reads; what the blueprint promises in vain becomes a warning.

    Less than there is may be wanted, so that a smaller figure of the blueprint stands. Emulated
    machines stay what they pretend to be.
    """
    if probe is None:
        return pool
    rates = {m.name: probe.rates_of(m.name) for m in pool.machines}
    speeds = {name: each.speed if each else None for name, each in rates.items()}
    comparable = all(speeds.values()) and not any(m.emulated for m in pool.machines)
    machines, warnings = [], list(pool.warnings)
    for machine in pool.machines:
        found = rates[machine.name]
        # Of this machine the blueprint's reader warns itself.
        if found is not None and not machine.emulated and not machine.is_here:
            gpus = len(found.gpus)
            facts = Facts(found.cores, (), found.memory or 0, gpus, gpus)
            machine, notes = fitted(machine, facts)
            warnings += notes
        if comparable:
            machine = machine.model_copy(update={"speed": speeds[machine.name]})
        machines.append(machine)
    return pool.model_copy(update={"machines": tuple(machines), "warnings": tuple(warnings)})
