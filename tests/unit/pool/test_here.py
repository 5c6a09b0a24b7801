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


def test_what_is_unsaid_is_measured() -> None:
    machine, warnings = fitted(here(), FOUR_CORES)
    assert (machine.cores, machine.gpus, machine.memory) == (4, 2, 2**30)
    assert machine.cpu_ids == (0, 2, 1, 3)
    assert warnings == []


def test_less_than_there_is() -> None:
    machine, warnings = fitted(here(cores=3, gpus=0, memory="1GB"), FOUR_CORES)
    assert (machine.cores, machine.gpus, machine.memory) == (3, 0, 10**9)
    assert machine.cpu_ids == (0, 2, 1)
    assert warnings == []


def test_more_than_there_is() -> None:
    machine, warnings = fitted(here(cores=9, gpus=3), FOUR_CORES)
    assert (machine.cores, machine.gpus) == (4, 2)
    assert warnings == [
        "me: the blueprint says 3 GPUs, the machine has 2 GPUs. Correct 'gpus', or set emulated: "
        "yes if that is intended.",
        "me: the blueprint says 9 cores, the machine has 4 cores. Correct 'cores'.",
    ]


def test_an_emulated_machine_may_claim_anything() -> None:
    machine, warnings = fitted(here(cores=9, gpus=3, emulated=True), FOUR_CORES)
    assert (machine.cores, machine.gpus, machine.real_gpus) == (9, 3, 2)
    assert warnings == []


def test_gpus_that_torch_cannot_use() -> None:
    facts = Facts(cores=1, cpu_ids=(0,), memory=1, gpus=2, usable_gpus=0)
    machine, warnings = fitted(here(), facts)
    assert machine.gpus == 0
    assert warnings == ["this machine has 2 GPUs, but the installed torch is a CPU build"]


def test_under_a_quota_nobody_is_held_to_a_core() -> None:
    machine, _ = fitted(here(), Facts(1, (0, 1, 2, 3), 8 * 10**9, 0, 0))
    assert (machine.cores, machine.cpu_ids) == (1, ())
