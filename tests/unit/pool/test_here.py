"""This machine as a member of a pool: what is measured, and what the blueprint says of it."""

from __future__ import annotations

import os

import pytest

from phalanx.agent.machine import facts as agent_facts
from phalanx.pool.here import Facts, fitted, measure, this_machine
from phalanx.pool.machine import Machine

FOUR_CORES = Facts(cores=4, cpu_ids=(0, 2, 1, 3), memory=2**30, gpus=2, usable_gpus=2)


def test_the_pool_without_a_blueprint() -> None:
    pool = this_machine()
    (here,) = pool.machines
    assert (here.name, here.host) == ("here", "here")
    assert set(here.cpu_ids) == os.sched_getaffinity(0)
    assert here.cores is not None and 1 <= here.cores <= len(here.cpu_ids)


def test_affinity_is_respected() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    os.sched_setaffinity(0, {one})
    try:
        assert measure().cpu_ids == (one,)
        assert measure().cores == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (2.9, 2), (64.0, 4), (None, 4)])
def test_a_quota_limits_the_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(agent_facts.groups, "cpu_quota", lambda: quota)
    monkeypatch.setattr(agent_facts, "cpu_ids", lambda: [4, 5, 6, 7])
    facts = measure()
    assert (facts.cores, facts.cpu_ids) == (cores, (4, 5, 6, 7))


def here(**fields: object) -> Machine:
    return Machine.model_validate({"name": "me", "host": "here", **fields})


@pytest.mark.parametrize(
    ("said", "cores", "gpus", "cpu_ids", "warned"),
    [
        ({}, 4, 2, (0, 2, 1, 3), []),
        ({"cores": 3, "gpus": 0}, 3, 0, (0, 2, 1), []),
        (
            {"cores": 9, "gpus": 3}, 4, 2, (0, 2, 1, 3),
            ["me: the blueprint says 3 GPUs, the machine has 2 GPUs. Correct 'gpus', or set "
             "emulated: yes if that is intended.",
             "me: the blueprint says 9 cores, the machine has 4 cores. Correct 'cores'."],
        ),
        ({"cores": 9, "gpus": 3, "emulated": True}, 9, 3, None, []),
    ],
)  # fmt: skip
def test_what_the_blueprint_says_of_this_machine(
    said: dict[str, object],
    cores: int,
    gpus: int,
    cpu_ids: tuple[int, ...] | None,
    warned: list[str],
) -> None:
    machine, warnings = fitted(here(memory="1GB", **said), FOUR_CORES)
    assert (machine.cores, machine.gpus, machine.real_gpus) == (cores, gpus, machine.real_gpus)
    assert machine.memory == 10**9 and warnings == warned
    assert cpu_ids is None or machine.cpu_ids == cpu_ids
    assert fitted(here(), FOUR_CORES)[0].memory == 2**30


def test_gpus_that_torch_cannot_use_and_cores_under_a_quota() -> None:
    facts = Facts(cores=1, cpu_ids=(0, 1, 2, 3), memory=1, gpus=2, usable_gpus=0)
    machine, warnings = fitted(here(), facts)
    assert machine.gpus == 0
    assert (machine.cores, machine.cpu_ids) == (1, ()), "nobody is held to a core"
    assert warnings == ["this machine has 2 GPUs, but the installed torch is a CPU build"]
