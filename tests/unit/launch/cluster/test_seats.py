"""What is known before a cluster's manager has placed the workers, and after."""

from __future__ import annotations

import importlib.util
import shutil
import stat
from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.cluster import node
from phalanx.launch.cluster.ray_launcher import check_ray
from phalanx.launch.cluster.seats import (
    SeatNote,
    key_file,
    read_note,
    write_note,
    write_private,
)
from phalanx.launch.cluster.slurm import read_options
from phalanx.launch.cluster.slurm_queue import SlurmJob, check_commands
from phalanx.launch.cluster.spark_session import check_spark, why_ended
from phalanx.observe.events.collect import LineTail


def test_a_note_is_read_as_written_and_nothing_else_is(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    (tmp_path / "cluster").mkdir()
    note = SeatNote(
        rank=1, attempt=0, node="n1", address="10.0.0.1", cores=4, threads=2, device="cpu", code=-9
    )
    write_note(paths, note)
    assert read_note(paths, 1) == note
    assert read_note(paths, 0) is None
    (tmp_path / "cluster" / "rank-1.json").write_text("{")
    assert read_note(paths, 1) is None


def test_a_key_is_this_users_alone(tmp_path: Path) -> None:
    path = key_file(RunPaths(tmp_path))
    write_private(path, "secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        write_private(path, "another")


def test_an_address_is_configured_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_ADDRESS", "203.0.113.0/24")
    for alone in (False, None):
        with pytest.raises(InputError) as caught:
            node.own_address("n1", alone=alone)
        assert "PHALANX_ADDRESS" in caught.value.remedy


def test_a_cluster_that_is_on_loopback_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_ADDRESS", raising=False)
    assert node.own_address("127.0.0.1:40123") == "127.0.0.1"
    with pytest.raises(InputError):
        node.own_address("127.0.0.1", alone=False)
    monkeypatch.setenv("PHALANX_ADDRESS", "127.0.0.0/8")
    assert node.own_address("elsewhere:40123") == "127.0.0.1"


@pytest.mark.parametrize("place", ["::1", "[::1]:7077"])
def test_an_address_with_colons_is_not_cut(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_ADDRESS", raising=False)
    monkeypatch.setattr(node, "own_addresses", lambda: ["::1"])
    assert node.own_address(place) == "::1"


def test_without_ray_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        check_ray()
    assert (caught.value.cause, caught.value.remedy) == (
        "Ray is not installed here",
        "Run: pip install ray",
    )


def test_a_file_that_is_another_by_its_name_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text("first\nsecond\n")
    tail = LineTail(path)
    assert tail.poll() == [b"first", b"second"]
    path.rename(tmp_path / "before")
    path.write_text("third\n")
    assert tail.poll() == [b"third"]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        ("partition=gpu,time=1:00:00", ["--partition=gpu", "--time=1:00:00"]),
        ("exclusive,gres=gpu:1", ["--exclusive", "--gres=gpu:1"]),
        ("nodelist=n1,n2,time=5", ["--nodelist=n1,n2", "--time=5"]),
        ("nodelist=n[1,2]", ["--nodelist=n[1,2]"]),
        ("comment=two words", ["--comment=two words"]),
    ],
)
def test_options_are_passed_on(text: str, options: list[str]) -> None:
    assert read_options(text) == options


@pytest.mark.parametrize("text", ["ntasks=4", "output=/tmp/x", "array=1-3", "wrap=ls"])
def test_what_phalanx_sets_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="that Phalanx sets"):
        read_options(text)


@pytest.mark.parametrize("text", ["--partition=gpu", "time=5\n#SBATCH --uid=0", "=x", "Time=5"])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="sbatch has no option"):
        read_options(text)


def test_without_sbatch_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        check_commands()
    assert caught.value.cause == "this machine has no 'sbatch', so it cannot submit to Slurm"
    assert "login node" in caught.value.remedy


def test_answers_of_squeue() -> None:
    job = SlurmJob("7")
    line = f"{'RUNNING':20}{'2':10}{'None':60}{'n[1-2]':300}\n"
    job._take(0, line, "")
    assert (job.last.state, job.last.restarts, job.last.nodes) == ("RUNNING", 2, "n[1-2]")
    job._take(1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    assert job.last.state == "RUNNING", "no answer ends no job"
    job._take(1, "", "slurm_load_jobs error: Invalid job id specified")
    assert job.last.over


PYTHON = """An error occurred while calling o71.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown:
  File "worker.py", line 4327, in invoke_udf
    run_process()
ModuleNotFoundError: No module named 'phalanx'

\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:572)
Caused by: java.io.EOFException: no more
"""
JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.IllegalArgumentException: requirement failed: no such master
\tat scala.Predef$.require(Predef.scala:337)
"""
LOST = "Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PYTHON, "ModuleNotFoundError: No module named 'phalanx'"),
        (JAVA, "requirement failed: no such master"),
        (LOST, LOST.partition(": ")[2].strip()),
        ("", "RuntimeError"),
    ],
)
def test_one_line_of_many(text: str, line: str) -> None:
    assert why_ended(RuntimeError(text), 2) == line


def test_too_few_slots_and_dynamic_allocation_are_told_as_such() -> None:
    with pytest.raises(InputError, match="2 workers need 2 slots at the same time"):
        why_ended(RuntimeError("[SPARK-24819]: Barrier execution mode does not allow"), 2)
    with pytest.raises(InputError, match="while executors come and go"):
        why_ended(RuntimeError("[SPARK-24942]: Barrier execution mode"), 2)


def test_without_spark_or_java_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="Spark is not installed here") as told:
        check_spark()
    assert "pip install" in told.value.remedy
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(InputError, match="Spark needs Java"):
        check_spark()
