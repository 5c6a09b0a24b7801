"""Energy and price of a run, from the power and the hourly price of its machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.plan.prediction import Interval
from phalanx.pool.machine import Machine
from phalanx.pool.measured import Probe

MEASURED, BLUEPRINT, ESTIMATE = "measured", "blueprint", "estimate"
ERRORS = {MEASURED: 0.1, BLUEPRINT: 0.3, ESTIMATE: 0.6}
BASE_WATTS, CORE_WATTS, GPU_WATTS = 10.0, 8.0, 250.0
"""Guesses for machines whose power is not known; the result is called an estimate."""


def watts_of(machine: Machine, probe: Probe | None) -> tuple[float, str]:
    """A machine's power under load, and the source of that figure."""
    rates = probe.rates_of(machine.name) if probe else None
    counted = [d.watts * d.count for d in rates.devices if d.watts is not None] if rates else []
    if counted:
        return sum(counted), MEASURED
    if machine.watts is not None:
        return machine.watts, BLUEPRINT
    return BASE_WATTS + CORE_WATTS * (machine.cores or 1) + GPU_WATTS * machine.gpus, ESTIMATE


def joules_of(
    machines: Sequence[Machine], busy: Mapping[str, float], error: float, probe: Probe | None
) -> tuple[Interval, str]:
    """Energy of a run, and the figure's least certain source; ``busy`` has seconds by machine."""
    known = [watts_of(machine, probe) for machine in machines]
    joules = sum(w * busy[m.name] for m, (w, _) in zip(machines, known, strict=True))
    worst = max((source for _, source in known), key=ERRORS.__getitem__)
    return Interval.around(joules, error + ERRORS[worst]), worst


def price_of(machines: Sequence[Machine], seconds: Interval) -> Interval | None:
    """Price of machines that are held for the whole run; those without a price cost nothing."""
    prices = [m.price_per_hour for m in machines if m.price_per_hour is not None]
    each = sum(prices) / 3600
    values = (seconds.low * each, seconds.value * each, seconds.high * each)
    return Interval(*values) if prices else None
