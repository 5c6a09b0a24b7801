"""The seats that torchrun, mpirun, srun and people give, and the mistakes in them."""

from __future__ import annotations

import pytest
from foreign_variables import BATCH_SCRIPT, BY_HAND, MPIRUN, SRUN, STANDALONE, TORCHRUN
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.train.start.launcher_env import Seat, first_host, seat_of, settings_of, tasks_by_node

MPIRUN_MET = MPIRUN | {"PHALANX_MEET": "10.77.0.2:9900"}
ALL = (TORCHRUN, STANDALONE, MPIRUN, MPIRUN_MET, SRUN, BATCH_SCRIPT, BY_HAND)


def seat(variables: dict[str, str]) -> Seat:
    found = seat_of(variables, "alpha.lab")
    assert found is not None
    return found


def refusal(variables: dict[str, str]) -> str:
    with pytest.raises(InputError) as caught:
        seat_of(variables, "alpha")
    assert caught.value.remedy
    return caught.value.cause


@pytest.mark.parametrize(
    ("variables", "launcher", "at", "locals", "meets", "run"),
    [
        (TORCHRUN, "torchrun", (1, 2), 2, ("127.0.0.1", 29512), "127.0.0.1-29511"),
        (
            TORCHRUN | {"MASTER_PORT": "65535"},
            "torchrun", (1, 2), 2, ("127.0.0.1", 65534), "127.0.0.1-65535",
        ),
        (MPIRUN_MET, "mpirun", (1, 2), 2, ("10.77.0.2", 9900), "855834625"),
        (
            MPIRUN_MET | {"PMIX_NAMESPACE": "prterun-alpha-4242@1"},  # of Open MPI 5
            "mpirun", (1, 2), 2, ("10.77.0.2", 9900), "prterun-alpha-4242-1",
        ),
        (SRUN, "srun", (6, 7), 1, ("node01", None), "4711.0"),
        (BY_HAND, "by hand", (1, 3), None, ("10.77.0.2", 9900), None),
    ],
)  # fmt: skip
def test_seats(
    variables: dict[str, str], launcher: str, at: tuple[int, int], locals: int | None,
    meets: tuple[str, int | None], run: str | None,
) -> None:  # fmt: skip
    found = seat(variables)
    assert (found.launcher, found.process, found.processes, found.locals) == (launcher, *at, locals)
    assert (found.meet_at, found.port) == (meets[0], meets[1] or found.port)
    assert found.run == (run or found.run)
    assert found.machine == ("node7" if launcher == "srun" else "alpha.lab")


def test_torchruns_own_id_names_the_run_and_a_restart_is_another_one() -> None:
    identity = "2e485621-2783-4008-80ee-fd71968672a4"
    assert seat(STANDALONE).run == identity
    assert seat(STANDALONE | {"TORCHELASTIC_RESTART_COUNT": "2"}).run == f"{identity}-again-2"


def test_what_is_said_to_phalanx_wins_over_the_launcher() -> None:
    told = {"PHALANX_MEET": "10.77.0.9", "PHALANX_PORT": "9000", "PHALANX_RUN_ID": "mine"}
    found = seat(TORCHRUN | told)
    assert (found.meet_at, found.port, found.run) == ("10.77.0.9", 9000, "mine")


def test_mpirun_needs_to_be_told_where_process_0_is() -> None:
    assert "PHALANX_MEET" in refusal(MPIRUN)


def test_all_processes_of_a_step_meet_and_two_steps_of_a_job_apart() -> None:
    others = [SRUN | {"SLURM_PROCID": str(n), "SLURM_NODEID": str(n // 2)} for n in range(7)]
    assert {seat(v).port for v in others} == {seat(SRUN).port}
    assert [seat(v).locals for v in others] == [2, 2, 2, 2, 2, 2, 1]
    assert seat(SRUN).port != seat(SRUN | {"SLURM_STEP_ID": "1"}).port


def test_a_batch_script_and_a_single_process_are_alone() -> None:
    assert seat_of(BATCH_SCRIPT, "alpha") is None
    assert seat_of({}, "alpha") is None
    assert seat_of({"RANK": "0", "WORLD_SIZE": "1"}, "alpha") is None
    alone = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert seat_of(SRUN | alone, "alpha") is None


def test_our_own_launchers_workers_have_no_foreign_seat() -> None:
    for variables in ALL:
        assert seat_of(variables | {"PHALANX_RANK": "0"}, "alpha") is None


def test_a_torchrun_that_srun_started_counts_by_itself() -> None:
    assert seat(SRUN | TORCHRUN).launcher == "torchrun"
    assert seat(TORCHRUN | BY_HAND).launcher == "by hand"


def test_an_address_of_version_six() -> None:
    assert seat(BY_HAND | {"PHALANX_MEET": "[fd00::2]:9900"}).meet_at == "fd00::2"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        (TORCHRUN | {"RANK": "2"}, "RANK"),
        (TORCHRUN | {"RANK": "one"}, "RANK"),
        (TORCHRUN | {"RANK": "-1"}, "RANK"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "PHALANX_MEET"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT"),
        (MPIRUN_MET | {"OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE"),
        (SRUN | {"SLURM_PROCID": ""}, "SLURM_PROCID"),
        (SRUN | {"SLURM_NODEID": "9"}, "SLURM_NODEID"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "SLURM_STEP_TASKS_PER_NODE"),
        (BY_HAND | {"PHALANX_PROCESSES": ""}, "PHALANX_PROCESSES"),
        (BY_HAND | {"PHALANX_MEET": ""}, "PHALANX_MEET"),
        (BY_HAND | {"PHALANX_MEET": "10.77.0.2"}, "PHALANX_PORT"),
        (BY_HAND | {"PHALANX_MEET": "10.77.0.2:x"}, "PHALANX_MEET"),
    ],
)
def test_half_set_and_contradictory_variables_are_named(
    variables: dict[str, str], named: str
) -> None:
    assert named in refusal(variables)


values = st.one_of(st.sampled_from(["", "0", "1", "2", "-1", "x", "²", "1e3"]), st.text(max_size=9))


@given(st.sampled_from(ALL), st.data())
def test_whatever_the_variables_are_there_is_a_seat_or_one_clear_error(
    base: dict[str, str], data: st.DataObject
) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(base))))
    names = st.sampled_from([*sorted(base), "PHALANX_MEET", "PHALANX_PORT", "PHALANX_RUN_ID"])
    changed = data.draw(st.dictionaries(names, values, max_size=4))
    variables = {name: base[name] for name in kept} | changed
    try:
        found = seat_of(variables, data.draw(st.text(max_size=9)))
    except InputError as error:
        assert "\n" not in error.cause
    else:
        assert found is None or 0 <= found.process < found.processes >= 2
        assert found is None or (0 < found.port < 65536 and found.meet_at and found.run)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("node01", "node01"),
        ("node[01-04,7]", "node01"),
        ("node[7,9-12],login", "node7"),
        ("a,b", "a"),
        ("rack[1-2]n[01-09]", "rack1n01"),
        ("gpu-[003]-ib", "gpu-003-ib"),
        ("", ""),
    ],
)
def test_the_first_of_slurms_hosts(text: str, first: str) -> None:
    assert first_host(text) == first


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 9)), min_size=1, max_size=9))
def test_slurms_tasks_by_node(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{tasks}(x{times})" if times > 1 else str(tasks) for tasks, times in parts)
    assert tasks_by_node("NAME", text) == [tasks for tasks, times in parts for _ in range(times)]


def test_settings_come_from_single_variables_or_as_a_whole() -> None:
    single = {"PHALANX_STRATEGY": "ssp:bound=5", "PHALANX_EPOCHS": "4", "PHALANX_BATCH": "96"}
    assert settings_of({}) == RunSettings(balance="auto")
    found = settings_of(single | {"PHALANX_SEED": "7", "PHALANX_PRECISION": "bfloat16"})
    wanted = RunSettings(
        strategy="ssp:bound=5", epochs=4, batch=96, seed=7, precision="bfloat16", balance="auto"
    )
    assert found == wanted
    assert settings_of(single | {"PHALANX_SETTINGS": wanted.to_json()}) == wanted


@pytest.mark.parametrize(
    "variables",
    [
        {"PHALANX_STRATEGY": "allreduec"},
        {"PHALANX_EPOCHS": "0"},
        {"PHALANX_BATCH": "many"},
        {"PHALANX_SEED": str(2**32)},
        {"PHALANX_PRECISION": "float33"},
        {"PHALANX_SETTINGS": "{"},
        {"PHALANX_SETTINGS": '{"strategy": "nonsense"}'},
    ],
)
def test_wrong_settings_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(InputError):
        settings_of(variables)
