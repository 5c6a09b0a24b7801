"""Plans: how many workers and servers, where each one goes, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.plan.placement import share_out
from phalanx.plan.plan import MOST_WORKERS, Plan, Slot, make_plan
from phalanx.plan.servers import Host, place_servers
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


@pytest.mark.parametrize(
    ("machine", "workers", "places", "reason"),
    [
        (here(4, ids=(1, 3, 5, 7)), None, [([1, 3, 5, 7], 4)], None),
        (here(4, ids=(0, 2, 1, 3)), 2, [([0, 2], 2), ([1, 3], 2)], "2 workers, as requested"),
        (here(5), 2, [([0, 1], 2), ([2, 3], 2)], "here: 1 core unused, because all workers get"),
        (here(2), 3, [([], 1)] * 3, "3 workers on 2 cores, so one thread each, not pinned"),
        (here(2, ids=(0, 1, 2, 3)), 2, [([0, 1], 1), ([2, 3], 1)], None),  # under a quota
        (remote("a"), 2, [([], 1)] * 2, "the number of cores is unknown"),
    ],
)
def test_cores_are_divided_and_what_is_left_is_said(
    machine: Machine, workers: int | None, places: list[tuple[list[int], int]], reason: str | None
) -> None:
    made = plan(machine, workers=workers)
    assert [(slot.cpus, slot.threads) for slot in slots(made)] == places
    assert made.workers == len(places) and made.predicted == {"seconds": None}
    assert reason is None or any(reason in each for each in made.reasons)


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


POOL = [
    Host("alpha", 1e8, 2),
    Host("beta", 1e9, 2),
    Host("gamma", None, 1),
    Host("delta", 1e9, 1),
    Host("spare", 1e10, 0),
]


@pytest.mark.parametrize(
    ("machines", "servers"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (20, 10)]
)
def test_by_default_a_server_for_each_pair_of_machines(machines: int, servers: int) -> None:
    hosts = [Host(f"m{i}", None, 1) for i in range(machines)]
    assert len(place_servers(hosts)) == servers


def test_the_best_links_come_first_then_those_with_fewer_workers() -> None:
    assert place_servers(POOL) == ["delta", "beta"]
    assert place_servers(POOL, 4) == ["delta", "beta", "alpha", "gamma"]


def test_names_are_taken_as_given_also_apart_from_the_workers() -> None:
    assert place_servers(POOL, ["spare", "alpha"]) == ["spare", "alpha"]
    assert place_servers(POOL, "spare") == ["spare"]


def test_more_servers_than_machines_go_round() -> None:
    assert place_servers(POOL[:2], 3) == ["beta", "alpha", "beta"]


@pytest.mark.parametrize("wish", [0, -1, [], ["gama"]])
def test_what_cannot_be_is_refused(wish: int | list[str]) -> None:
    with pytest.raises(InputError):
        place_servers(POOL, wish)


@given(
    st.lists(
        st.tuples(st.none() | st.floats(1e6, 1e11), st.integers(1, 4)), min_size=1, max_size=9
    ),
    st.integers(1, 9),
)
def test_no_measured_link_that_is_left_is_clearly_better(
    links: list[tuple[float | None, int]], n: int
) -> None:
    hosts = [Host(f"m{i}", rate, workers) for i, (rate, workers) in enumerate(links)]
    rates = {host.name: host.bits_per_second or 0.0 for host in hosts}
    taken = place_servers(hosts, min(n, len(hosts)))
    assert len(set(taken)) == len(taken)
    left = rates.keys() - set(taken)
    worst = min(rates[name] for name in taken)
    assert max((rates[name] for name in left), default=0.0) <= 1.2 * worst


def test_noise_of_the_probe_places_no_server() -> None:
    hosts = [Host("a", 9.99e8, 2), Host("b", 9.95e8, 1), Host("c", 5e8, 1)]
    assert place_servers(hosts, 2) == ["b", "a"]


def test_absurdly_many_workers() -> None:
    with pytest.raises(InputError, match="too many to start"):
        plan(here(2), workers=10**12)
    assert plan(here(2), workers=MOST_WORKERS).workers == MOST_WORKERS
