"""Blueprint against machine: what it promises in vain, and what planning then takes."""

from __future__ import annotations

from typing import Any

from phalanx.pool.here import as_measured, contradictions
from phalanx.pool.machine import Machine, Pool
from phalanx.pool.measured import DeviceRates, MachineRates, Probe

GIB = 2**30


def machine(name: str = "a", **fields: Any) -> Machine:
    return Machine(name=name, host=f"{name}.example", **fields)


def against(made: Machine, cores: int = 4, memory: int = 8 * GIB, gpus: int = 0) -> list[str]:
    return [each.cause for each in contradictions(made, cores=cores, memory=memory, gpus=gpus)]


def test_more_than_there_is() -> None:
    assert against(machine(gpus=1)) == ["a: the blueprint says 1 GPU, the machine has no GPUs"]
    assert against(machine(cores=8)) == ["a: the blueprint says 8 cores, the machine has 4 cores"]
    assert against(machine(memory="16GiB")) == [
        "a: the blueprint says 16.0 GiB of memory, the machine has 8.0 GiB"
    ]


def test_less_than_there_is_may_be_wanted_and_kernels_keep_some() -> None:
    assert against(machine(cores=2, gpus=0), gpus=2) == []
    assert against(machine(memory="8.5GiB")) == []
    assert against(machine()) == []


def test_an_emulated_machine_pretends() -> None:
    assert against(machine(gpus=1, cores=64, emulated=True)) == []


def rates(name: str, speed: float, gpus: int = 0) -> MachineRates:
    devices = [DeviceRates("CPU", 1, speed, None, 10.0)]
    if gpus:
        devices.append(DeviceRates("G", gpus, speed * 100, None, 10.0))
    return MachineRates(name, 4, 8 * GIB, ["G"] * gpus, devices)


def probe(*figures: MachineRates) -> Probe:
    return Probe("2026-01-02T03:04:05+00:00", 1.0, 2.0, [], [], rates=list(figures))


def pool(*machines: Machine) -> Pool:
    return Pool(machines=machines, source="pool.yaml")


def test_measurements_win_over_facts_and_facts_over_guesses() -> None:
    made = pool(machine("a", cores=8, gpus=3), machine("b", cores=2), machine("c", speed=9.0))
    figures = [rates("a", 50.0, gpus=1), rates("b", 20.0), rates("c", 10.0)]
    found = as_measured(made, probe(*figures))
    assert [m.cores for m in found.machines] == [4, 2, 4]
    assert [m.gpus for m in found.machines] == [1, 0, 0]
    assert [m.speed for m in found.machines] == [5000.0, 20.0, 10.0]
    assert [w.partition(".")[0] for w in found.warnings] == [
        "a: the blueprint says 3 GPUs, the machine has 1 GPU",
        "a: the blueprint says 8 cores, the machine has 4 cores",
    ]


def test_speeds_are_taken_only_where_all_were_measured() -> None:
    made = pool(machine("a", speed=1.0), machine("b", speed=2.0))
    assert [m.speed for m in as_measured(made, probe(rates("a", 5.0))).machines] == [1.0, 2.0]
    assert as_measured(made, None) is made


def test_emulated_machines_stay_what_they_pretend_to_be() -> None:
    made = pool(machine("a", gpus=1, cores=64, speed=3.0, emulated=True))
    found = as_measured(made, probe(rates("a", 5.0)))
    assert (found.machines, found.warnings) == (made.machines, ())
