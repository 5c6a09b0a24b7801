"""Reads and checks the limits of a lab's machines: processor time, link rate, memory."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.pool.machine import read_size

RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SLOWEST_RATE = 1e5
SMALLEST_MEMORY = 64 * 1024**2
"""Below this not even the machine's sshd starts."""
SMALLEST_QUOTA = 1.0
"""Percent of one core."""


def read_rate(value: float | str | None) -> float | None:
    """``1gbit`` as bits per second."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]bit)", str(value).strip().lower())
    if found:
        value = float(found[1]) * RATES[found[2]]
    if isinstance(value, str) or not SLOWEST_RATE <= value < math.inf:
        raise InputError(
            f"'{value}' is not a link rate", "Give one of 100kbit or more: 100mbit, 1gbit, 2.5gbit."
        )
    return float(value)


def read_rates(value: float | str | None, count: int) -> tuple[float | None, list[float | None]]:
    """``m3=100mbit,1gbit``: the rate of links without one of their own, and that of each link."""
    words = [w.strip() for w in value.split(",")] if isinstance(value, str) else [value]
    plain = [word for word in words if not isinstance(word, str) or "=" not in word]
    if len(plain) > 1:
        raise InputError(
            f"--rate {value} has {len(plain)} rates without a machine",
            "Give one for all, and others by name: --rate m3=100mbit,1gbit",
        )
    common = read_rate(plain[0]) if plain else None
    rates, names = [common] * count, [f"m{number}" for number in range(1, count + 1)]
    for word in words:
        if isinstance(word, str) and "=" in word:
            name, _, rate = (part.strip() for part in word.partition("="))
            if name not in names:
                raise InputError(
                    f"--rate {word}: there is no machine '{name}'", did_you_mean(name, names)
                )
            rates[names.index(name)] = read_rate(rate)
    return common, rates


def read_memory(value: int | str | None) -> int | None:
    """``4GiB`` as bytes."""
    if value is None:
        return None
    try:
        size = read_size(value)
    except ValueError:
        size = None
    if not isinstance(size, int) or size < SMALLEST_MEMORY:
        raise InputError(
            f"'{value}' is not a memory size", "Give a size of 64MiB or more, such as 4GiB."
        )
    return size


def read_quotas(cpu: str | Sequence[float] | None, count: int) -> list[float | None]:
    """``60,60,30``: percent of one core for each machine; a single number is for all of them."""
    if cpu is None:
        return [None] * count
    try:
        quotas = [float(word) for word in (cpu.split(",") if isinstance(cpu, str) else cpu)]
    except ValueError:
        raise InputError(
            f"'{cpu}' is not a list of numbers", "Give percent of one core: --cpu 60,60,30"
        ) from None
    quotas = quotas * count if len(quotas) == 1 else quotas
    if len(quotas) != count:
        raise InputError(
            f"{len(quotas)} quotas for {count} machines",
            "Give one quota for each machine, or a single one for all of them.",
        )
    return [check_quota(quota) for quota in quotas]


def check_quota(quota: float) -> float:
    if not SMALLEST_QUOTA <= quota < math.inf:
        raise InputError(
            f"a quota of {quota:g} % is too small", "Give 1 or more: percent of one core."
        )
    return quota


def check_sum(quotas: Sequence[float | None], cores: int) -> None:
    """Refuse what the host cannot give: nothing measured on such a lab would mean anything."""
    given = [quota for quota in quotas if quota is not None]
    if sum(given) <= 100 * cores + 1e-9:
        return
    raise InputError(
        f"quotas {' + '.join(f'{q:g}' for q in given)} = {sum(given):g} % of a core, "
        f"but this host has {cores} cores ({100 * cores} %)",
        _advice(given, 100 * cores),
    )


def _advice(quotas: Sequence[float], whole: int) -> str:
    """Quotas that fit: the least for each, and the rest in proportion."""
    rest = whole - SMALLEST_QUOTA * len(quotas)
    if rest < 0:
        return "Use fewer machines."
    fitting = [SMALLEST_QUOTA + math.floor(q * rest / sum(quotas)) for q in quotas]
    return f"Scale them down, for example: --cpu {','.join(f'{q:g}' for q in fitting)}"
