"""A Spark cluster of this machine's own: a master and two workers, authenticated and encrypted."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

LONGEST = 120.0
"""Seconds until a process of the cluster answers."""
MODELS = Path(__file__).parent / "spark_models.py"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of its master. Each worker has one slot."""
    pyspark = pytest.importorskip("pyspark")
    pytest.importorskip("pandas", reason="pyspark needs it for Arrow")
    if not shutil.which("java"):
        pytest.skip("there is no java here")

    home, folder = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("spark")
    secret, port = secrets.token_hex(16), free_port()
    settings = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
    }
    (folder / "conf").mkdir()
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "conf" / "spark-defaults.conf").write_text(lines)
    (folder / "conf").chmod(0o700)
    variables = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    url = f"spark://127.0.0.1:{port}"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        start = ["master.Master", *common, "--port", str(port)]
        _daemon(stack, home, variables, folder / "master.log", start, "I have been elected leader")
        for number in range(2):
            work = ["--work-dir", str(folder / f"work-{number}"), "--cores", "1", "--memory", "1g"]
            start = ["worker.Worker", *common, *work, url]
            log = folder / f"worker-{number}.log"
            _daemon(stack, home, variables, log, start, "Successfully registered with master")
        with pytest.MonkeyPatch.context() as patch:
            for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP", "PYSPARK_PYTHON"):
                patch.setenv(name, variables[name])
            yield url


def _daemon(
    stack: ExitStack, home: Path, variables: dict[str, str], log: Path, words: list[str], sign: str
) -> None:
    """Started here, and ended by its own process id, with what it has started."""
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=variables, stdout=file, stderr=file)
    stack.callback(_end, process)
    deadline = time.monotonic() + LONGEST
    while sign not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{words[0]} did not start: {log.read_text(errors='replace')}")
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def spark(cluster: str) -> Iterator[Any]:
    """It has all slots, so it ends with its module: others start applications of their own."""
    from pyspark.sql import SparkSession

    session = session_of(SparkSession, cluster)
    yield session
    session.stop()


def session_of(kind: Any, url: str) -> Any:
    builder = (
        kind.builder.master(url)
        .appName("phalanx-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "1g")
        .config("spark.executor.cores", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.sparkContext.addPyFile(str(MODELS))
    return session


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
