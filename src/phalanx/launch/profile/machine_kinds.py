"""Machines that need not be measured twice, and costs of one that are scaled to another."""

from __future__ import annotations

import msgspec

from phalanx.agent.machine.facts import cpu_model
from phalanx.plan.job import MachineCosts
from phalanx.pool.machine import Machine
from phalanx.pool.measured import CPU, DeviceRates, Probe

SCALED_ERROR = 0.3
"""Error of costs that were scaled by what a probe has measured."""
GUESSED_ERROR = 0.6
"""Error of costs that were scaled by the number of cores, or from another kind of device."""


class Kinds:
    """Sorts machines into kinds by their blueprint and their probe, if there was one."""

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe

    def _device(self, machine: Machine) -> DeviceRates | None:
        """What one worker of it computes on."""
        rates = self._probe.rates_of(machine.name) if self._probe else None
        devices = rates.devices if rates else []
        fast = [d for d in devices if (d.name != CPU) == (machine.gpus > 0)]
        return next(iter(fast or devices), None)

    def name(self, machine: Machine) -> str:
        """The name that all machines of one kind share; their costs are measured once and kept by
        it. Without a probe, every machine is a kind of its own."""
        device = self._device(machine)
        what = cpu_model() if machine.is_here else f"{machine.host}:{machine.port}"
        if device is not None and device.float32 and not machine.is_here:
            what = f"{device.name} {device.float32:.2g} {device.memory or 0:.2g}"
        return f"{what} cores={machine.cores} gpus={machine.gpus} emulated={machine.emulated}"

    def scaled(self, costs: MachineCosts, source: Machine, target: Machine) -> MachineCosts:
        """Costs on ``source`` as they may be on ``target``."""
        one, other = self._device(source), self._device(target)
        factor, alike = (source.cores or 1) / (target.cores or source.cores or 1), False
        if one is not None and other is not None and one.float32 and other.float32:
            factor, alike = one.float32 / other.float32, one.name == other.name
        error = max(costs.work.error, SCALED_ERROR if alike else GUESSED_ERROR)
        fixed, each = costs.work.fixed * factor, costs.work.each * factor
        work = msgspec.structs.replace(
            costs.work, fixed=fixed, each=each, error=error, extrapolated=True
        )
        # Reading samples and starting take no part of what was compared.
        update, evaluate = costs.update * factor, costs.evaluate * factor
        return msgspec.structs.replace(costs, work=work, update=update, evaluate=evaluate)
