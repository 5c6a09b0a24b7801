"""Says what is wrong with a pool, and how to fix it: pure functions of a ``Check``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from phalanx.core.errors import PhalanxError
from phalanx.launch.link.clocks import SKEW_WARNING, clock_words
from phalanx.launch.pool.pool_check import Check, Knock, Visit
from phalanx.launch.shipping.versions import OLDEST
from phalanx.pool.here import contradictions

LEAST_DISK = 10**9
SKEW_ERROR = 3600.0 - 60.0
FILTERED = (
    "no answer",
    "timed out",
    "connection timed out",
    "connection refused",
    "connection reset by peer",
    "no route to host",
    "operation not permitted",
    "permission denied",
)
"""Errors that come from a firewall, because the machine that is tested does listen."""


@dataclass(frozen=True)
class PoolFinding:
    """Something wrong: ``error`` keeps a machine from taking part; a warning does not."""

    level: str
    machines: tuple[str, ...]
    cause: str
    remedy: str


def findings_of(check: Check) -> list[PoolFinding]:
    found = [finding for visit in check.visits for finding in _of_machine(visit)]
    return [*found, *_same_machines(check), *_closed_doors(check)]


def _of_machine(visit: Visit) -> Iterator[PoolFinding]:
    name, facts = visit.machine.name, visit.facts
    if visit.error is not None:
        yield _error(name, visit.error)
        return
    assert facts is not None
    if visit.python_error is not None:
        yield _error(name, visit.python_error)
    yield from _python(visit)
    if facts.disk_free is not None and facts.disk_free < LEAST_DISK:
        yield PoolFinding(
            "error",
            (name,),
            f"{name}: only {facts.disk_free / 1e6:.0f} MB are free in {facts.folder}",
            "Free some space, or set 'folder' in the blueprint to a folder with more.",
        )
    yield from _clock(visit)
    if visit.listen_error is not None:
        yield _error(name, visit.listen_error)
    gpus = len(facts.gpus)
    for each in contradictions(visit.machine, cores=facts.cores, memory=facts.memory, gpus=gpus):
        level = "error" if each.field == "gpus" else "warning"
        yield PoolFinding(level, (name,), each.cause, each.remedy)


def _python(visit: Visit) -> Iterator[PoolFinding]:
    name, version = visit.machine.name, visit.python
    if version is None:
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        yield PoolFinding(
            "error",
            (name,),
            f"{name}: '{visit.machine.python}' is Python {version}; workers need 3.11 or newer",
            "Install a newer Python, and set 'python' in the blueprint to it.",
        )
    elif visit.torch is None:
        yield PoolFinding(
            "warning",
            (name,),
            f"{name}: {visit.machine.python} has no torch",
            "Set 'python' in the blueprint to one with torch, or add a requirements.txt.",
        )


def _clock(visit: Visit) -> Iterator[PoolFinding]:
    name, skew = visit.machine.name, visit.skew
    if skew is None or abs(skew) <= SKEW_WARNING:
        return
    yield PoolFinding(
        "error" if abs(skew) >= SKEW_ERROR else "warning",
        (name,),
        clock_words(name, skew),
        "On that machine, run: sudo timedatectl set-ntp true",
    )


def _same_machines(check: Check) -> Iterator[PoolFinding]:
    known = [visit for visit in check.visits if visit.facts is not None]
    for one, other in combinations(known, 2):
        assert one.facts and other.facts
        if one.facts.machine_id == other.facts.machine_id:
            names = one.machine.name, other.machine.name
            yield PoolFinding(
                "error",
                names,
                f"{names[0]} ({one.machine.endpoint}) and {names[1]} "
                f"({other.machine.endpoint}) are the same machine",
                "Remove one of them from the blueprint.",
            )


def _closed_doors(check: Check) -> Iterator[PoolFinding]:
    for knock in check.knocks:
        if not knock.ok:
            source, target = check.visit(knock.source), check.visit(knock.target)
            yield PoolFinding(
                "error",
                (knock.source, knock.target),
                f"{knock.source} cannot reach {knock.target} at {target.address}: {knock.why}",
                _way_in(knock, source, target),
            )


def _way_in(knock: Knock, source: Visit, target: Visit) -> str:
    if "another machine" in knock.why:
        return f"Set 'address' of {knock.target} in the blueprint to one of its own addresses."
    if knock.why not in FILTERED:
        return f"Check whether {knock.source} has a route to it: ip route get {target.address}"
    who = source.address or knock.source
    return (
        f"On {knock.target}, run: sudo ufw allow from {who} to any   (or: sudo firewall-cmd "
        f"--permanent --zone=trusted --add-source={who} && sudo firewall-cmd --reload)"
    )


def _error(name: str, error: PhalanxError) -> PoolFinding:
    cause = error.cause if name in error.cause else f"{name}: {error.cause}"
    return PoolFinding("error", (name,), cause, error.remedy)
