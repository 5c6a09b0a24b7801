"""How far a machine's clock is from this one's, in words."""

from __future__ import annotations

SKEW_WARNING = 5.0
"""Seconds that two machines' clocks may differ without a word."""


def clock_words(name: str, skew: float) -> str:
    side = "ahead of" if skew > 0 else "behind"
    return f"{name}: its clock is {_duration(abs(skew))} {side} this machine's"


def _duration(seconds: float) -> str:
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        # A minute less than an hour is said as an hour: nobody sets clocks to 59 minutes.
        if seconds >= size * 0.98:
            number = round(seconds / size)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{seconds:.1f} seconds"
