"""Says in one sentence whether fewer machines would be faster; nothing if that is not known."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.words import listed
from phalanx.observe.speedup.speedup import BALANCE, FEWER, Option, WaitedFor, Worth

GAIN = 1.10
"""Smaller differences are never worth a piece of advice."""
_ALIKE = 0.05
_WORTH_NAMING = 0.03
_STEADY = (0.75, 1.33)
"""The ratios within which "about as fast" has to stay in every stretch of the time."""
_CLEARLY_SLOWER = 1.3
_FEW = 3


def advise(worth: Worth) -> str | None:
    """Advice, or that all machines help; ``None`` if the run was too uneven to tell."""
    if len(worth.machines) < 2:
        return None
    faster = [o for o in worth.predicted if o.times >= GAIN]
    if any(option.low <= 1.0 for option in _best_first(faster)[:1]):
        return None
    certain = [option for option in faster if option.low > 1.0]
    if certain:
        return _change(worth, certain)
    return _stay(worth)


def and_lost(worth: Worth, advice: str | None) -> str | None:
    """Puts in front of the advice that some workers are lost."""
    if not worth.lost:
        return advice
    lost = f"{listed(list(worth.lost))} {'was' if len(worth.lost) == 1 else 'were'} lost"
    return f"{lost}; {advice}" if advice else lost


def as_sentence(worth: Worth, advice: str) -> str:
    """``advice`` with a capital letter, unless it begins with a name."""
    names = (*worth.machines, *worth.lost)
    named = worth.several_hosts and any(advice.startswith((f"{n} ", f"{n}, ")) for n in names)
    return advice if named else f"{advice[0].upper()}{advice[1:]}"


def _best_first(options: Sequence[Option]) -> list[Option]:
    return sorted(options, key=lambda option: option.times, reverse=True)


def _change(worth: Worth, faster: Sequence[Option]) -> str:
    ways, late = [], worth.waiting
    balanced = [option for option in faster if option.kind == BALANCE]
    helps = bool(balanced)
    fewer = _best_first([option for option in faster if option.kind == FEWER])
    if fewer:
        alike = [o for o in fewer if o.times >= (1.0 - _ALIKE) * fewer[0].times]
        kept = max(alike, key=lambda option: len(option.machines))
        ways.append(_leave_out(worth, kept))
        helps = helps or (late is not None and late.name not in kept.machines)
    ways += [f"balance it (without shares=equal: {_faster(option)})" for option in balanced]
    return f"{_why(worth, late if helps else None)}: {' or '.join(ways)}"


def _leave_out(worth: Worth, option: Option) -> str:
    gone = [name for name in worth.machines if name not in option.machines]
    late = worth.waiting
    if len(gone) > max(_FEW, len(option.machines)):  # the few are named, not the many
        return f"keep only {listed(option.machines)} ({_how(worth, option)}: {_faster(option)})"
    known = late is not None and _named(late) and gone == [late.name]
    whom = "it" if known else listed(gone)
    return f"leave {whom} out ({_how(worth, option)}: {_faster(option)})"


def _why(worth: Worth, late: WaitedFor | None) -> str:
    """The reason; ``late``: the machine that the others wait for, if the advice would end that."""
    if late is None or not _named(late):
        kind = "machines" if worth.several_hosts else "workers"
        return f"communication costs more time than the additional {kind} save"
    others = [name for name in worth.machines if name != late.name]
    share = f"{100 * late.share:.0f} % of the time"
    who = others[0] if len(others) == 1 else "the others"
    if late.slower is None or late.slower < _CLEARLY_SLOWER:
        return f"{who} {'waits' if len(others) == 1 else 'wait'} {share} for {late.name}"
    wait = ", which waits" if len(others) == 1 else " and they wait"
    return f"{late.name} is {late.slower:.1f} times slower than {who}{wait} {share} for it"


def _named(late: WaitedFor) -> bool:
    return late.share >= _WORTH_NAMING


def _stay(worth: Worth) -> str | None:
    fewer = [option for option in worth.predicted if option.kind == FEWER]
    alone = min(fewer, key=lambda option: len(option.machines))
    without = max(fewer, key=lambda option: len(option.machines))
    for option in (alone, without):
        if option.times * GAIN > 1.0:
            steady = _STEADY[0] <= option.low and option.high <= _STEADY[1]
            return _as_fast(worth, option) if steady else None
    if without.high >= 1.0 or without.times <= 0.0:
        return None
    gone = listed([name for name in worth.machines if name not in without.machines])
    return (
        f"{_all(worth)} help: without {gone} it would be about {1 / without.times:.1f} times slower"
    )


def _as_fast(worth: Worth, option: Option) -> str:
    if len(option.machines) == 1:
        return f"{option.machines[0]} alone would be about as fast ({_how(worth, option)})"
    gone = listed([name for name in worth.machines if name not in option.machines])
    return f"{gone} adds little: without it ({_how(worth, option)}) it would be about as fast"


def _all(worth: Worth) -> str:
    kind = "machines" if worth.several_hosts else "workers"
    kind += " that are left" if worth.lost else ""
    count = len(worth.machines)
    return f"both {kind}" if count == 2 else f"all {count} {kind}"


def _how(worth: Worth, option: Option) -> str:
    if worth.several_hosts:
        return f"--machines {','.join(option.machines)}"
    return f"--workers {len(option.machines)}"


def _faster(option: Option) -> str:
    return f"about {option.times:.1f} times faster"
