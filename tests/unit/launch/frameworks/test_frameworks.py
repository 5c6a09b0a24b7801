"""Variables, roles and endings of other frameworks' processes: pure functions."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.launch.frameworks import environment_of, settings_variables
from phalanx.launch.frameworks.framework import Framework, Places
from phalanx.launch.frameworks.seating import places_of, plan_for, read_roles, roles_by_rank, seat
from phalanx.launch.frameworks.tensorflow_scripts import (
    needs_legacy_keras,
    system_of,
    unprepared,
)
from phalanx.plan.plan import Plan, PlannedMachine, Slot
from phalanx.pool.machine import Machine

TORCH = Framework(name="torch", system="torch")
MIRRORED = Framework(name="tensorflow", system="tf-mwms")
SERVERS = Framework(name="tensorflow", system="tf-ps")


def plan_of(*slots: int, device: str = "cpu") -> Plan:
    machines, rank = [], 0
    for index, count in enumerate(slots):
        places = [
            Slot(rank=rank + i, cpus=[], threads=index + 1, device=device) for i in range(count)
        ]
        machines.append(
            PlannedMachine(name=f"m{index}", host=f"192.0.2.{index}", cores=4, gpus=0, slots=places)
        )
        rank += count
    return Plan(
        strategy="allreduce", selection="all", machines=machines, workers=rank, batch=None,
        predicted={}, reasons=[],
    )  # fmt: skip


def placed(plan: Plan, framework: Framework, **more: dict[str, str | None]) -> Places:
    addresses = {machine.name: machine.host for machine in plan.machines}
    ports = {slot.rank: 4000 + slot.rank for m in plan.machines for slot in m.slots}
    return places_of(plan, framework, "run-1", addresses, ports, **more)


def configs(places: Places) -> dict[int, dict[str, object]]:
    found = environment_of("tensorflow", places)
    return {rank: json.loads(variables["TF_CONFIG"]) for rank, variables in found.items()}


def test_torch_on_machines_with_unequal_numbers_of_processes() -> None:
    found = environment_of("torch", placed(plan_of(1, 2), TORCH))

    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
    assert [[found[rank][name] for name in names] for rank in range(3)] == [
        ["0", "0", "1", "0", "0"],
        ["1", "0", "2", "1", "1"],
        ["2", "1", "2", "1", "1"],
    ]
    for variables in found.values():
        assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("192.0.2.0", "4000")
        assert (variables["WORLD_SIZE"], variables["TORCHELASTIC_RUN_ID"]) == ("3", "run-1")
        assert "GLOO_SOCKET_IFNAME" not in variables, "an interface is never guessed"
    assert [found[rank]["OMP_NUM_THREADS"] for rank in range(3)] == ["1", "2", "2"]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ((1,), ["1x1"]),
        ((2,), ["2x1"] * 2),
        ((1, 1, 1), ["1x3"] * 3),
        ((2, 2), ["2x2"] * 4),
        ((1, 2), ["1x3", "3x1", "3x1"]),
        ((1, 1, 2), ["1x4", "1x4", "2x2", "2x2"]),
        ((4, 2), ["6x1"] * 4 + ["2x3"] * 2),
    ],
)
def test_lightning_is_told_of_all_processes_and_of_a_device_for_each_local_one(
    slots: tuple[int, ...], expected: list[str]
) -> None:
    found = environment_of("torch", placed(plan_of(*slots), TORCH))
    for prefix in ("PL_TRAINER", "LT"):
        told = [f"{v[prefix + '_DEVICES']}x{v[prefix + '_NUM_NODES']}" for v in found.values()]
        assert told == expected
    for variables in found.values():
        devices, nodes = int(variables["LT_DEVICES"]), int(variables["LT_NUM_NODES"])
        assert devices * nodes == int(variables["WORLD_SIZE"])
        assert devices > int(variables["LOCAL_RANK"])


def test_accelerate_trains_together_without_gpus_too() -> None:
    """It needs to be told: on CPUs each process would train alone, in silence."""
    on_cpus = environment_of("torch", placed(plan_of(1, 2), TORCH))
    assert [variables["ACCELERATE_USE_CPU"] for variables in on_cpus.values()] == ["true"] * 3
    on_gpus = environment_of("torch", placed(plan_of(1, 2, device="cuda:0"), TORCH))
    assert all("ACCELERATE_USE_CPU" not in variables for variables in on_gpus.values())


def test_accelerate_uses_no_gpu_where_one_machine_has_none() -> None:
    with_gpu, without = plan_of(1, device="cuda:0").machines[0], plan_of(1, 1).machines[1]
    plan = msgspec.structs.replace(plan_of(1, 1), machines=[with_gpu, without])
    found = environment_of("torch", placed(plan, TORCH))
    assert [variables.get("ACCELERATE_USE_CPU") for variables in found.values()] == ["true"] * 2


def test_an_interface_of_the_pool_is_passed_on_to_its_machine_alone() -> None:
    places = placed(plan_of(1, 1), TORCH, interfaces={"m1": "eth7"})
    found = environment_of("torch", places)
    assert found[1]["GLOO_SOCKET_IFNAME"] == found[1]["NCCL_SOCKET_IFNAME"] == "eth7"
    assert "NCCL_SOCKET_IFNAME" not in found[0]


def test_mirrored_workers_know_all_workers_and_themselves() -> None:
    found = configs(placed(plan_of(1, 2), MIRRORED))
    everyone = ["192.0.2.0:4000", "192.0.2.1:4001", "192.0.2.1:4002"]
    assert [config["cluster"] for config in found.values()] == [{"worker": everyone}] * 3
    tasks = [config["task"] for config in found.values()]
    assert tasks == [{"type": "worker", "index": index} for index in range(3)]


def test_a_server_script_on_four_machines_has_a_chief_two_workers_and_a_server() -> None:
    plan = seat(plan_of(1, 1, 1, 1), SERVERS, None)
    assert plan.workers == 4, "nobody is added where there are machines enough"
    found = configs(placed(plan, SERVERS))
    assert found[0]["cluster"] == {
        "chief": ["192.0.2.0:4000"],
        "worker": ["192.0.2.1:4001", "192.0.2.2:4002"],
        "ps": ["192.0.2.3:4003"],
    }
    assert [config["task"] for config in found.values()] == [
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "ps", "index": 0},
    ]


@pytest.mark.parametrize(("slots", "asked"), [((1, 1), None), ((1, 1), 2), ((2,), 2), ((2, 2), 4)])
def test_workers_that_were_asked_for_compute_and_chief_and_server_come_on_top(
    slots: tuple[int, ...], asked: int | None
) -> None:
    plan = seat(plan_of(*slots), SERVERS, asked)
    places = placed(plan, SERVERS)
    assert len(places.with_role("worker")) == sum(slots)
    assert places.processes[0].role == "chief" and places.processes[0].machine == "m0"
    assert places.processes[-1].role == "ps"
    assert places.processes[-1].machine == plan.machines[-1].name
    assert [process.rank for process in places.processes] == list(range(sum(slots) + 2))
    assert len({(process.address, process.port) for process in places.processes}) == sum(slots) + 2


NINE = [Machine(name=f"m{n}", host=f"192.0.2.{n}", cores=4) for n in range(1, 10)]


def test_chief_workers_and_servers_on_nine_machines() -> None:
    """One chief, six workers, two servers: with numbers, or with names of machines alone."""
    for roles in ({}, {"chief": 1, "worker": 6, "ps": 2}):
        framework = msgspec.structs.replace(SERVERS, servers=2, roles=roles)
        plan = plan_for(
            NINE, framework, None, strategy="allreduce", selection="all", batch=None,
            servers=["m2", "m5"],
        )  # fmt: skip
        found = roles_by_rank(framework, len(plan.seats))
        assert found == ["chief", *["worker"] * 6, "ps", "ps"]
        machines = [machine.name for machine, _ in plan.seats]
        assert machines == ["m1", "m3", "m4", "m6", "m7", "m8", "m9", "m2", "m5"]


@pytest.mark.parametrize(
    ("strategy", "workers", "seats"),
    [("async", 2, 3), ("allreduce@0.5/ssp", 2, 3), ("allreduce", 2, 2), ("single", 1, 1)],
)
def test_our_own_servers_come_after_all_workers(strategy: str, workers: int, seats: int) -> None:
    plan = plan_for(
        NINE[:3], None, None, strategy=strategy, selection="all", batch=None, servers=["m1"]
    )
    assert (plan.workers, len(plan.seats)) == (workers, seats)
    assert "m1" not in [machine.name for machine, _ in plan.seats[:workers]]
    assert any("m1 unused" in reason for reason in plan.reasons) == (seats == workers)


@pytest.mark.parametrize("system", ["tf-mwms", "tf-ps"])
def test_an_evaluator_is_the_last(system: str) -> None:
    framework = Framework(
        name="tensorflow", system=system, roles=read_roles("worker=2,evaluator=1")
    )
    places = placed(plan_of(2, 1), framework)
    found = configs(places)[2]
    assert found["task"] == {"type": "evaluator", "index": 0}
    assert found["cluster"] == {
        "worker": ["192.0.2.0:4000", "192.0.2.0:4001"],
        "evaluator": ["192.0.2.1:4002"],
    }


def test_a_strategy_of_one_machine_has_all_of_it() -> None:
    framework = Framework(name="tensorflow", system="tf-mirrored")
    machines = [Machine(name=name, host="192.0.2.1", gpus=2, cores=8) for name in ("a", "b")]
    plan = plan_for(machines, framework, None, strategy="allreduce", selection="all", batch=None)
    assert [machine.name for machine in plan.machines] == ["a"] and plan.workers == 1
    (found,) = environment_of("tensorflow", placed(plan, framework)).values()
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1" and found["TF_NUM_INTRAOP_THREADS"] == "8"


FITS = "\nwith tf.distribute.{}().scope():\n    m = make()\nm.fit(x)\n"


@pytest.mark.parametrize(
    ("begin", "strategy", "needed"),
    [
        (
            "import tensorflow as tf\nmake = tf.keras.Sequential",
            "MultiWorkerMirroredStrategy",
            True,
        ),
        ("from tensorflow.keras import layers", "ParameterServerStrategy", True),
        ("from tensorflow import keras", "MultiWorkerMirroredStrategy", True),
        ("import tensorflow.keras.layers as L", "MultiWorkerMirroredStrategy", True),
        ("import keras", "MultiWorkerMirroredStrategy", False),
        ("from tensorflow import keras", "MirroredStrategy", False),
        (
            "import os; os.environ['TF_USE_LEGACY_KERAS'] = '0'; tf.keras",
            "ParameterServerStrategy",
            False,
        ),
    ],
)
def test_where_keras_3_cannot_do_it(begin: str, strategy: str, needed: bool) -> None:
    assert needs_legacy_keras(begin + FITS.format(strategy)) is needed


NONSENSE = (
    "", "worker", "worker=0", "worker=x", "chief=1", "chief=2,worker=1", "worker=1,worker=2",
    "wroker=2", "worker=-1", "worker=99999", "worker=2,evaluator=2",
)  # fmt: skip


@pytest.mark.parametrize("text", NONSENSE)
def test_roles_that_make_no_sense(text: str) -> None:
    with pytest.raises(InputError):
        read_roles(text)


def test_an_address_of_version_six_keeps_its_colons_apart_from_the_port() -> None:
    plan = plan_of(1)
    places = places_of(plan, MIRRORED, "r", {"m0": "fd00::7"}, {0: 4000})
    assert configs(places)[0]["cluster"] == {"worker": ["[fd00::7]:4000"]}


def test_a_tensorflow_process_sees_its_own_gpu_only() -> None:
    on_gpu = environment_of("tensorflow", placed(plan_of(1, device="cuda:3"), MIRRORED))
    on_cpu = environment_of("tensorflow", placed(plan_of(1), MIRRORED))
    assert on_gpu[0]["CUDA_VISIBLE_DEVICES"] == "3"
    assert on_cpu[0]["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize(
    ("source", "system"),
    [
        ("import tensorflow as tf\ns = tf.distribute.ParameterServerStrategy(r)", "tf-ps"),
        ("from tensorflow.distribute import ParameterServerStrategy as P\nP(r)", "tf-ps"),
        ("s = tf.distribute.experimental.ParameterServerStrategy(r)", "tf-ps"),
        ("s = tf.distribute.MultiWorkerMirroredStrategy()", "tf-mwms"),
        ("# not a ParameterServerStrategy\ns = 'ParameterServerStrategy'", "tf-mwms"),
        ("s = tf.distribute.MirroredStrategy()", "tf-mirrored"),
        ("d = tf.distribute\nd.MirroredStrategy() or d.MultiWorkerMirroredStrategy()", "tf-mwms"),
        ("s = tf.distribute.experimental.CentralStorageStrategy()", "tf-central-storage"),
        ("def broken(", "tf-mwms"),
        ("a\x00b", "tf-mwms"),
    ],
)
def test_the_kind_of_script_is_read_from_its_code(source: str, system: str) -> None:
    assert system_of(source) == system


def test_only_what_was_asked_for_is_passed_on() -> None:
    assert settings_variables(RunSettings()) == {"PHALANX_SEED": "0"}
    asked = settings_variables(RunSettings(epochs=3, batch=128, seed=7))
    assert asked == {"PHALANX_EPOCHS": "3", "PHALANX_BATCH": "128", "PHALANX_SEED": "7"}


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("load('mnist', split='train')", []),
        ("load(name='mnist:3.*.*', with_info=True)", []),
        ("load('cifar10')", ["cifar10"]),
        ("load(name='glue/cola')", ["glue"]),
        ("load(sys.argv[1])", []),
    ],
)
def test_data_sets_that_are_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, missing: list[str]
) -> None:
    (tmp_path / "mnist" / "3.0.1").mkdir(parents=True)
    source = f"import sys\nimport tensorflow_datasets as tfds\ntfds.{call}\n".encode()
    assert unprepared(source, str(tmp_path)) == (tmp_path, missing)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert unprepared(source, None) == (tmp_path, missing)
