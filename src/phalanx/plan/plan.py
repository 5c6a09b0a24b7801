"""The plan of a run: machines, slots, strategy, batch, and the reasons (``plan.json``)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.plan.placement import PlannedMachine, Slot, crowded, natural_workers, place, share_out
from phalanx.plan.select import by_speed
from phalanx.pool.machine import HERE, Machine

__all__ = ["MOST_WORKERS", "Plan", "PlannedMachine", "Slot", "make_plan"]

MOST_WORKERS = 1024
"""The most workers of one machine: a larger number is a typing mistake, and would exhaust the
machine."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run, made before anything is started."""

    strategy: str
    selection: str
    machines: list[PlannedMachine]
    workers: int
    batch: int | None
    """The global batch; null leaves it to the script."""
    predicted: dict[str, float | None]
    reasons: list[str]

    @property
    def remote(self) -> list[str]:
        """The names of the machines that are not this one."""
        return [m.name for m in self.machines if m.host != HERE]

    @property
    def seats(self) -> list[tuple[PlannedMachine, Slot]]:
        """Every slot with its machine, in the order of the ranks."""
        return [(machine, slot) for machine in self.machines for slot in machine.slots]

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Plan:
        try:
            return msgspec.json.decode(text, type=Plan)
        except msgspec.MsgspecError as error:
            raise InputError(f"the plan cannot be read: {error}", "Start a new run.") from error


def make_plan(
    machines: Sequence[Machine],
    *,
    workers: int | None,
    strategy: str,
    selection: str,
    batch: int | None,
) -> Plan:
    """Place ``workers`` (the total; one per GPU or per machine when ``None``) on ``machines``."""
    if not machines:
        raise InputError("there is no machine to plan for", "Select at least one.")
    instead_of = 1
    if is_single(strategy):  # the baseline of other strategies: the best that one machine can do
        everyone, machines = list(machines), by_speed(machines)[:1]
        total = workers or natural_workers(everyone)
        instead_of = max(1, share_out(everyone, total)[everyone.index(machines[0])])
    count, reasons = _count(machines, workers, strategy)
    _check_batch(batch, count)
    planned: list[PlannedMachine] = []
    rank = 0
    for machine, share in zip(machines, share_out(machines, count), strict=True):
        reasons += _remarks(machine, share)
        if share:
            planned.append(place(machine, share, rank, instead_of=instead_of))
            rank += share
    return Plan(
        strategy=strategy,
        selection=selection,
        machines=planned,
        workers=count,
        batch=batch,
        predicted={"seconds": None},
        reasons=reasons,
    )


def is_single(strategy: str) -> bool:
    return parse_spec(strategy).phases[0].name == "single"


def _count(
    machines: Sequence[Machine], workers: int | None, strategy: str
) -> tuple[int, list[str]]:
    """Return the number of workers, and the reasons for it."""
    if workers is not None and workers < 1:
        raise InputError(f"--workers is {workers}: at least one is needed", "Use 1 or more.")
    most = MOST_WORKERS * len(machines)
    if workers is not None and workers > most:
        raise InputError(f"--workers is {workers}, too many to start", f"Use at most {most}.")
    if is_single(strategy):
        asked = workers is not None and workers > 1
        return 1, [f"'single' has one worker; --workers {workers} does not apply"] if asked else []
    if workers is not None:
        return workers, [f"{_workers(workers)}, as requested"]
    count = natural_workers(machines)
    return count, [f"{_workers(count)}: one per GPU, one per machine without GPUs"]


def _check_batch(batch: int | None, workers: int) -> None:
    if batch is None:
        return
    if batch < 1:
        raise InputError(f"--batch is {batch}: at least 1 is needed", "Use 1 or more.")
    if batch < workers:
        raise InputError(
            f"a batch of {batch} is too small for {workers} workers",
            f"Use --batch {workers} or more, or at most {_workers(batch)}.",
        )


def _remarks(machine: Machine, workers: int) -> list[str]:
    name, cores = machine.name, machine.cores
    if not workers:
        return [f"{name} gets no worker: all of them are on the other machines"]
    if cores is None:
        return [f"{name}: the number of cores is unknown, so one thread per worker, not pinned"]
    if crowded(machine, workers):
        return [f"{name}: {workers} workers on {_cores(cores)}, so one thread each, not pinned"]
    idle = cores % workers
    if idle:
        return [f"{name}: {_cores(idle)} unused, because all workers get the same number"]
    return []


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count != 1 else ''}"


def _cores(count: int) -> str:
    return f"{count} core{'s' if count != 1 else ''}"
