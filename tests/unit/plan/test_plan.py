"""Plans: how many workers, where each one goes, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.plan.placement import share_out
from phalanx.plan.plan import Plan, Slot, make_plan
from phalanx.pool.machine import Machine


def here(cores: int, gpus: int = 0, ids: tuple[int, ...] | None = None) -> Machine:
    cpu_ids = tuple(range(cores)) if ids is None else ids
    return Machine(name="here", host="here", cores=cores, gpus=gpus, cpu_ids=cpu_ids)


def remote(name: str, cores: int | None = None, gpus: int = 0) -> Machine:
    return Machine(name=name, host=f"{name}.example", cores=cores, gpus=gpus)


def plan(
    *machines: Machine,
    workers: int | None = None,
    strategy: str = "allreduce",
    batch: int | None = None,
) -> Plan:
    return make_plan(machines, workers=workers, strategy=strategy, selection="all", batch=batch)


def slots(plan: Plan) -> list[Slot]:
    return [slot for machine in plan.machines for slot in machine.slots]


def test_one_machine_without_gpus_has_one_worker_with_everything() -> None:
    made = plan(here(4, ids=(1, 3, 5, 7)))
    assert made.workers == 1
    assert slots(made) == [Slot(rank=0, cpus=[1, 3, 5, 7], threads=4, device="cpu")]
    assert made.remote == []
    assert made.predicted == {"seconds": None}


def test_cores_are_divided() -> None:
    made = plan(here(4, ids=(0, 2, 1, 3)), workers=2)
    assert [(s.cpus, s.threads) for s in slots(made)] == [([0, 2], 2), ([1, 3], 2)]
    assert made.reasons == ["2 workers, as requested"]


def test_shares_are_equal_and_the_rest_is_said() -> None:
    made = plan(here(5), workers=2)
    assert [(s.cpus, s.threads) for s in slots(made)] == [([0, 1], 2), ([2, 3], 2)]
    assert "here: 1 core unused, because all workers get the same number" in made.reasons


def test_more_workers_than_cores_are_not_pinned() -> None:
    made = plan(here(2), workers=3)
    assert [(s.cpus, s.threads) for s in slots(made)] == [([], 1)] * 3
    assert "here: 3 workers on 2 cores, so one thread each, not pinned" in made.reasons


def test_under_a_quota_threads_follow_the_quota_and_cores_the_machine() -> None:
    made = plan(here(2, ids=(0, 1, 2, 3)), workers=2)
    assert [(s.cpus, s.threads) for s in slots(made)] == [([0, 1], 1), ([2, 3], 1)]


def test_one_worker_per_gpu_and_round_robin_beyond() -> None:
    assert [s.device for s in slots(plan(here(8, gpus=2)))] == ["cuda:0", "cuda:1"]
    pretending = here(8, gpus=2).model_copy(update={"real_gpus": 1})
    assert [s.device for s in slots(plan(pretending))] == ["cuda:0", "cpu"]
    made = plan(here(8, gpus=2), workers=5)
    assert [s.device for s in slots(made)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]


@pytest.mark.parametrize(
    ("workers", "counts"),
    [(1, [0, 1, 0]), (2, [0, 2, 0]), (3, [1, 2, 0]), (4, [1, 2, 1]), (7, [1, 2, 4])],
)
def test_gpus_first_then_machines_then_where_there_is_room(workers: int, counts: list[int]) -> None:
    machines = [remote("small", cores=2), remote("gpu", cores=8, gpus=2), remote("big", cores=16)]
    assert share_out(machines, workers) == counts


def test_a_machine_without_a_worker_is_left_out_and_said() -> None:
    made = plan(here(2), remote("b", cores=1), workers=1)
    assert [m.name for m in made.machines] == ["here"]
    assert "b gets no worker: all of them are on the other machines" in made.reasons


def test_unknown_cores() -> None:
    made = plan(remote("a"), workers=2)
    assert [(s.cpus, s.threads) for s in slots(made)] == [([], 1)] * 2
    assert made.machines[0].cores is None
    assert any("the number of cores is unknown" in r for r in made.reasons)


def test_single_has_one_worker() -> None:
    made = plan(here(4), workers=3, strategy="single", batch=1)
    assert [(s.cpus, s.threads) for s in slots(made)] == [([0, 1, 2], 3)], "as three would have"
    assert made.workers == 1
    assert made.reasons == ["'single' has one worker; --workers 3 does not apply"]
    assert plan(here(4), strategy="single").reasons == []
    assert slots(plan(here(4), here(4, gpus=2), strategy="single"))[0].device == "cuda:0"


def test_json_there_and_back() -> None:
    made = plan(here(4), remote("b", gpus=1), workers=3, strategy="switch:at=0.5", batch=64)
    assert Plan.from_json(made.to_json()) == made


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"strategy": 1}', "\x00"])
def test_a_damaged_plan(text: str) -> None:
    with pytest.raises(InputError, match="the plan cannot be read"):
        Plan.from_json(text)


@given(
    ids=st.sets(st.integers(0, 255), min_size=1, max_size=48),
    quota=st.integers(1, 48),
    workers=st.integers(1, 64),
    gpus=st.integers(0, 4),
)
def test_slots_of_one_machine(ids: set[int], quota: int, workers: int, gpus: int) -> None:
    cores = min(quota, len(ids))
    found = slots(plan(here(cores, gpus, tuple(ids)), workers=workers))
    assert [s.rank for s in found] == list(range(workers))
    assert all(s.threads >= 1 for s in found)
    assert sum(s.threads for s in found) <= max(cores, workers)
    used = [cpu for s in found for cpu in s.cpus]
    if workers <= cores:
        assert len(used) == len(set(used)) and set(used) <= ids
        assert all(len(s.cpus) >= s.threads for s in found)
        assert len({len(s.cpus) for s in found}) == 1
    else:
        assert used == []
    per_device = [sum(s.device == f"cuda:{g}" for s in found) for g in range(gpus)]
    if gpus:
        assert sum(per_device) == workers and max(per_device) - min(per_device) <= 1
    else:
        assert {s.device for s in found} == {"cpu"}


@given(
    facts=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(1, 32)), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    ),
    workers=st.one_of(st.none(), st.integers(1, 40)),
)
def test_every_rank_once_over_any_pool(
    facts: list[tuple[int | None, int]], workers: int | None
) -> None:
    machines = [remote(f"m{i}", cores, gpus) for i, (cores, gpus) in enumerate(facts)]
    made = plan(*machines, workers=workers)
    assert [s.rank for s in slots(made)] == list(range(made.workers))
    assert made.workers == (workers or sum(max(1, gpus) for _, gpus in facts))
    assert all(m.slots for m in made.machines)
    gpus_left_idle = [g for m in made.machines if (g := m.gpus - len(m.slots)) > 0]
    on_cpus = [s for s in slots(made) if s.device == "cpu"]
    assert not (gpus_left_idle and on_cpus)


@pytest.mark.parametrize("cores", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("workers", [None, 1, 2, 3, 4, 16])
def test_single_has_the_cores_and_threads_of_the_others_together(
    cores: int, workers: int | None
) -> None:
    alone = slots(plan(here(cores), workers=workers, strategy="single", batch=None))
    others = slots(plan(here(cores), workers=workers, strategy="allreduce", batch=None))
    assert sorted(alone[0].cpus) == sorted(c for slot in others for c in slot.cpus)
    assert alone[0].threads == min(cores, sum(slot.threads for slot in others))
