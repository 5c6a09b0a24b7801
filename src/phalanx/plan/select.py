"""Which machines of a pool take part."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.pool.machine import HERE, Machine, Pool

GROUPS = ("all", "cpus", "gpus", "energy")
"""The selections that take no argument."""


def select(pool: Pool, text: str) -> list[Machine]:
    """Return the machines that ``text`` names: a selection, a name, or several with commas between.

    They are in the order in which they were asked for, each once; ``fastest:N`` puts the fastest
    first, the other selections keep the order of the pool.
    """
    taken: dict[str, Machine] = {}
    for part in text.split(","):
        for machine in _part(pool, part.strip(), text):
            taken.setdefault(machine.name, machine)
    return list(taken.values())


def by_speed(machines: Iterable[Machine]) -> list[Machine]:
    """Sort the fastest first: by ``speed`` if every machine has one, else by GPUs, then cores."""
    found = list(machines)
    if all(m.speed is not None for m in found):
        return sorted(found, key=lambda m: -(m.speed or 0.0))
    return sorted(found, key=lambda m: (-m.gpus, -(m.cores or 0)))


def _part(pool: Pool, word: str, text: str) -> list[Machine]:
    if not word:
        raise InputError(f"the selection '{text}' has an empty part", "For example: --machines all")
    if word == "auto":
        raise InputError(
            "--machines auto needs --strategy auto, and no other selection beside it",
            f"Give both to 'phalanx run', or use {', '.join(GROUPS)}, fastest:N or names.",
        )
    if word in GROUPS:
        return _group(pool, word)
    name, colon, number = word.partition(":")
    if name == "fastest":
        # isdecimal alone would let other scripts' digits pass.
        if not (number.isascii() and number.isdecimal() and int(number[:9]) >= 1):
            raise InputError(
                f"'{word}' needs a whole number of machines, 1 or more", "For example: fastest:2"
            )
        wanted = int(number[:9])
        if wanted > len(pool.machines):
            raise InputError(f"'{word}' needs {number[:9]} machines", f"The pool has {_has(pool)}.")
        return by_speed(pool.machines)[:wanted]
    named = {m.name: m for m in pool.machines}
    if colon or word not in named:
        known = [*named, *GROUPS, "fastest:N"]
        hint = did_you_mean(word, known)
        if list(named) == [HERE]:
            hint = "Other machines come from a blueprint: --pool FILE."
        raise InputError(f"'{word}' is neither a machine nor a selection", hint)
    return [named[word]]


def _group(pool: Pool, word: str) -> list[Machine]:
    tests: dict[str, Callable[[Machine], bool]] = {
        "all": lambda m: True,
        "cpus": lambda m: m.gpus == 0,
        "gpus": lambda m: m.gpus > 0,
        "energy": lambda m: m.energy_efficient,
    }
    found = [m for m in pool.machines if tests[word](m)]
    if not found:
        raise InputError(
            f"the selection '{word}' matches no machine", f"The pool has {_has(pool)}."
        )
    return found


def _has(pool: Pool) -> str:
    """The pool in a few words: ``3 machines: here (2 cores), alpha (1 GPU), …``."""
    if not pool.machines:
        return "no machines"
    count = len(pool.machines)
    shown = ", ".join(_describe(m) for m in pool.machines[:6])
    more = f", and {count - 6} more" if count > 6 else ""
    return f"{count} machine{'s' if count > 1 else ''}: {shown}{more}"


def _describe(machine: Machine) -> str:
    facts = []
    if machine.gpus:
        facts.append(f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''}")
    elif machine.cores:
        facts.append(f"{machine.cores} core{'s' if machine.cores > 1 else ''}")
    if machine.energy_efficient:
        facts.append("efficient")
    return f"{machine.name} ({', '.join(facts)})" if facts else machine.name
