"""Numbers, sizes and times as people read them."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

UNKNOWN = "–"
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|ms|min|s|h|B|[kMGT]B|[kMG]?bit/s|points|samples|epochs?|times|workers?)"
    r"(?![A-Za-z]))"
)


def unbroken(text: str) -> str:
    """Keep each number and its unit on one line."""
    return _UNIT.sub("\u00a0", text)


def seconds(value: float | None) -> str:
    """``9.12 s``, ``3 min 25 s``, ``7:38:25 h``."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 99.95:
        return f"{value:.1f} s" if value >= 9.995 else f"{value:.2f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d} h"


def clock(duration: float | None) -> str:
    """``0:07``, ``12:30``, ``1:02:03``."""
    if duration is None:
        return UNKNOWN
    minutes, second = divmod(max(0, round(duration)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def share(value: float | None) -> str:
    """Return a fraction as a percentage."""
    return UNKNOWN if value is None else f"{100 * value:.2f} %"


def rough_share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}" if abs(value) >= 100 else f"{value:.4f}"


def count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def percent(value: float) -> str:
    """Return a percentage of at least zero: below 3 % with a decimal, else as a whole number."""
    return f"{value:.0f} %" if value >= 2.95 else f"{value:.1f} %"


def points(value: float) -> str:
    """A difference of two shares, in percentage points."""
    return f"{100 * value:.2f} points"


def size(value: float | None, *, binary: bool = False, digits: int = 3) -> str:
    """Return bytes such as ``1.52 GB``, or ``4 GiB`` with ``binary``."""
    if value is None:
        return UNKNOWN
    units = ("B", "KiB", "MiB", "GiB", "TiB") if binary else ("B", "kB", "MB", "GB", "TB")
    unit = units[0]
    for unit in units:
        if value < 999.5 or unit == units[-1]:
            break
        value /= 1024 if binary else 1000
    return f"{value:,.0f} {unit}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g} {unit}"


def span(low: str, high: str) -> str:
    """``97.6 to 97.9 %``: a unit that both have is written once."""
    unit = high[high.rfind(" ") :] if " " in high else ""
    if unit and low.endswith(unit) and low.count(" ") == 1:
        low = low.removesuffix(unit)
    return f"{low} to {high}"


def rate(bits: float) -> str:
    """Bits per second: ``100 Mbit/s``."""
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= size:
            return f"{bits / size:g} {unit}"
    return f"{bits:g} bit/s"


def short(text: str, most: int = 40) -> str:
    """Return ``text`` on one line of at most ``most`` printable characters."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
