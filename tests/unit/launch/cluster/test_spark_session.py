"""What Spark says, in a line each; what is missing here, before anything is started."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from phalanx.core.errors import InputError
from phalanx.launch.cluster.spark_session import check_spark, why_ended

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
