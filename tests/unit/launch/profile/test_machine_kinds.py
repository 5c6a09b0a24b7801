"""Machines of one kind, and costs that are scaled from one machine to another."""

from __future__ import annotations

import pytest

from phalanx.launch.profile.kept_profiles import Kinds
from phalanx.plan.job import MachineCosts, WorkCurve
from phalanx.pool.machine import Machine
from phalanx.pool.measured import DeviceRates, MachineRates, Probe

NAMES = ("a", "b", "c", "d")
MACHINES = [Machine(name=name, host=f"{name}.example", cores=4) for name in NAMES]
COSTS = MachineCosts(work=WorkCurve(fixed=0.1, each=0.01), update=0.2, evaluate=3.0, start=1.0)


def _probe(*speeds: float) -> Probe:
    rates = [
        MachineRates(name, 4, None, [], [DeviceRates("CPU", 1, speed, None, 10.0)])
        for name, speed in zip(NAMES, speeds, strict=False)
    ]
    return Probe("", 1.0, 1.0, list(NAMES), [], rates=rates)


def test_the_same_speed_is_the_same_kind() -> None:
    kinds = Kinds(_probe(100.0, 103.0, 50.0))
    one, same, slower, unknown = map(kinds.name, MACHINES)
    assert one == same
    assert len({one, slower, unknown}) == 3


def test_costs_are_scaled_by_the_speeds() -> None:
    scaled = Kinds(_probe(100.0, 50.0)).scaled(COSTS, MACHINES[0], MACHINES[1])
    assert scaled.work.each == pytest.approx(0.02)
    assert scaled.work.fixed == pytest.approx(0.2)
    assert scaled.update == pytest.approx(0.4)
    assert scaled.work.extrapolated
    assert scaled.work.error > COSTS.work.error


def test_without_speeds_they_are_scaled_by_cores_and_less_certain() -> None:
    slow = MACHINES[1].model_copy(update={"cores": 2})
    guessed = Kinds(None).scaled(COSTS, MACHINES[0], slow)
    known = Kinds(_probe(100.0, 50.0)).scaled(COSTS, MACHINES[0], MACHINES[1])
    assert guessed.work.each == pytest.approx(0.02)
    assert guessed.work.error > known.work.error
