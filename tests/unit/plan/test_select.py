"""Selections: which machines each one takes, and the answer when it takes none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import BAD_INPUT, InputError
from phalanx.plan.select import select
from phalanx.pool.machine import Machine, Pool


def machine(name: str, **fields: object) -> Machine:
    return Machine.model_validate({"name": name, "host": f"{name}.example", **fields})


def pool_of(*machines: Machine) -> Pool:
    return Pool(machines=machines, source="test")


# The pool of the thesis: two efficient i5, an FX-8120, and two machines with a GPU.
I5A = machine("i5a", cores=4, energy_efficient=True)
I5B = machine("i5b", cores=4, energy_efficient=True)
FX = machine("fx", cores=8)
PHENOM = machine("phenom", cores=6, gpus=1)
I7 = machine("i7", cores=8, gpus=1)
THESIS = pool_of(I5A, I5B, FX, PHENOM, I7)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", "i5a i5b fx phenom i7"),
        ("cpus", "i5a i5b fx"),
        ("gpus", "phenom i7"),
        ("energy", "i5a i5b"),
        ("fastest:1", "i7"),
        ("fastest:3", "i7 phenom fx"),
        ("fastest:5", "i7 phenom fx i5a i5b"),
        ("fx", "fx"),
        ("i7, i5a", "i7 i5a"),
        ("fx,fx", "fx"),
        ("fx,gpus", "fx phenom i7"),
        ("gpus,all", "phenom i7 i5a i5b fx"),
    ],
)
def test_taken(text: str, names: str) -> None:
    assert [m.name for m in select(THESIS, text)] == names.split()


def test_fastest_by_speed_when_every_machine_has_one() -> None:
    slow_gpu = machine("a", gpus=4, speed=1.0)
    fast_cpu = machine("b", cores=2, speed=3.5)
    assert [m.name for m in select(pool_of(slow_gpu, fast_cpu), "fastest:2")] == ["b", "a"]
    unknown = machine("c", cores=64)
    assert [m.name for m in select(pool_of(unknown, fast_cpu, slow_gpu), "fastest:3")] == [
        "a",
        "c",
        "b",
    ]


@pytest.mark.parametrize(
    ("pool", "text", "cause", "remedy"),
    [
        (pool_of(I5A, FX), "gpus", "'gpus' matches no machine", "i5a (4 cores, efficient), fx"),
        (pool_of(I7), "cpus", "'cpus' matches no machine", "1 machine: i7 (1 GPU)"),
        (pool_of(FX), "energy", "'energy' matches no machine", "fx (8 cores)"),
        (pool_of(), "all", "'all' matches no machine", "no machines"),
        (THESIS, "fastest:6", "needs 6 machines", "5 machines"),
        (THESIS, "fastest:0", "1 or more", "fastest:2"),
        (THESIS, "fastest:-1", "1 or more", "fastest:2"),
        (THESIS, "fastest", "1 or more", "fastest:2"),
        (THESIS, "fastest:many", "1 or more", "fastest:2"),
        (THESIS, "fastest:²", "1 or more", "fastest:2"),
        (THESIS, "fastest:" + "9" * 5000, "needs", "5 machines"),
        (THESIS, "phenon", "'phenon' is neither a machine", "Did you mean 'phenom'?"),
        (THESIS, "gpu", "'gpu' is neither a machine nor a selection", "Did you mean 'gpus'?"),
        (THESIS, "gpus:2", "'gpus:2' is neither a machine", "gpus"),
        (THESIS, "", "empty", "--machines all"),
        (THESIS, "fx,,i7", "empty part", "--machines all"),
        (THESIS, "auto", "--machines auto needs --strategy auto", "fastest:N"),
    ],
)
def test_refused(pool: Pool, text: str, cause: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        select(pool, text)
    assert caught.value.exit_code == BAD_INPUT
    assert cause in caught.value.cause
    assert remedy in caught.value.remedy


def test_a_large_pool_is_described_shortly() -> None:
    pool = pool_of(*(machine(f"m{i}") for i in range(50)))
    with pytest.raises(InputError) as caught:
        select(pool, "gpus")
    assert caught.value.remedy.endswith("m5, and 44 more.")


machines_of_any_kind = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 64), st.booleans()), min_size=1, max_size=12
)


def made(facts: list[tuple[int, int, bool]]) -> Pool:
    return pool_of(
        *(
            machine(f"m{i}", gpus=gpus, cores=cores, energy_efficient=efficient)
            for i, (gpus, cores, efficient) in enumerate(facts)
        )
    )


@given(machines_of_any_kind, st.data())
def test_the_fastest_are_at_least_as_fast_as_the_rest(
    facts: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    pool = made(facts)
    count = data.draw(st.integers(1, len(facts)))
    taken = select(pool, f"fastest:{count}")
    left = [m for m in pool.machines if m not in taken]
    assert len(taken) == count
    assert all((t.gpus, t.cores) >= (m.gpus, m.cores) for t in taken for m in left)
