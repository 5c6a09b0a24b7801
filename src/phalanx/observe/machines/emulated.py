"""What is not real about a run, in words: slowed workers and wires."""

from __future__ import annotations

from phalanx.core.settings import RunSettings

_UNITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))


def describe_emulation(chosen: RunSettings, machines: bool = False) -> str | None:
    """``speeds 1, 1, 0.25; 100 Mbit/s``, or ``None`` where all is as it is."""
    told = ["lab machines"] if machines else []
    if chosen.slow and any(speed != 1.0 for speed in chosen.slow):
        told.append("speeds " + ", ".join(f"{speed:g}" for speed in chosen.slow))
    if chosen.rate is not None:
        told.append(_rate(chosen.rate))
    return "; ".join(told) or None


def _rate(bits: float) -> str:
    size, unit = next((u for u in _UNITS if bits >= u[0]), _UNITS[-1])
    return f"{bits / size:g} {unit}"
