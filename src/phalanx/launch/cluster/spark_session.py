"""Connects to Spark as its driver: opens a session, counts slots, and finds losses."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.core.background import BackgroundThread
from phalanx.core.errors import InputError, MachineError, RunStopped
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.cluster.node import LOOPBACK

TICK, PATIENCE, MORE_COME = 0.2, 60.0, 10.0
"""Seconds between looks; at most until the first executor; at most from one to the next."""
LOG = "spark.log"
_OURS = {
    "spark.ui.enabled": "false",  # no web page on a port: the run has its own report
    "spark.ui.showConsoleProgress": "false",
    "spark.dynamicAllocation.enabled": "false",  # otherwise there are no barrier stages
    "spark.stage.maxConsecutiveAttempts": "1",  # what Spark tries again does not belong to the run
}
_LOST = re.compile(
    r"ExecutorLostFailure|Executor heartbeat timed out|Remote RPC client disassociated|"
    r"[Ww]orker lost|[Ee]xecutor .{0,80}(lost|exited|decommission)"
)


def check_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise InputError("Spark is not installed here", "Run: pip install 'phalanx-train[spark]'")
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise InputError("Spark needs Java, and there is none here", "Install Java 17 or newer.")


def connect(master: str, paths: RunPaths, asked: Callable[[], bool]) -> Any:
    """Open a session at ``master`` or the one in Spark's configuration, with the run's log."""
    pyspark: Any = importlib.import_module("pyspark")
    conf, log = pyspark.SparkConf().setAppName(f"phalanx {paths.id}"), paths.logs / LOG
    chosen = {**_OURS, **({"spark.master": master} if master else {})}
    if master.startswith("local"):
        chosen |= {f"spark.driver.{name}": LOOPBACK for name in ("host", "bindAddress")}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in chosen.items():
        conf.set(name, value)
    builder = importlib.import_module("pyspark.sql").SparkSession.builder
    try:
        with _output_to(log):
            pyspark.SparkContext._ensure_initialized(conf=conf)
        # Not in the main thread, where Spark would handle Ctrl-C; and a master may be out of reach.
        made = BackgroundThread("phalanx-spark").submit(builder.config(conf=conf).getOrCreate)
        while not made.done():
            if asked():
                raise RunStopped
            time.sleep(TICK)
        return made.result()
    except Exception as error:
        # When a master does not answer, Spark stops the context that it was making.
        gone = "stopped SparkContext" in str(error)
        why = "the master could not be reached, or refused the application"
        raise MachineError(
            f"cannot connect to Spark at '{master or 'its configured master'}': "
            f"{why if gone else _words(error)}",
            f"Check --launcher spark:URL, and Spark's configuration (SPARK_CONF_DIR); see {log}",
        ) from None


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Within this context, a Java process that Spark starts writes its output to ``log``."""
    kept = [os.dup(number) for number in (1, 2)]
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


def _words(error: BaseException) -> str:
    """Return what Python or Java says, in one line."""
    text = str(error).strip()
    java = re.findall(r"^(?:: )?(?:org|java)\.[\w.]+: (?!Job aborted)(.+)$", text, re.M)
    python = re.findall(r"^(?!org\.|java\.|py4j\.)[\w.]*(?:Error|Lost): .+$", text, re.M)
    found: list[str] = [*python[-1:], *java, *text.splitlines(), type(error).__name__]
    return found[0].strip()[:200]


def why_ended(error: BaseException, workers: int) -> str:
    """Say why a stage ended, in one line."""
    return loss_in(str(error), workers) or _words(error)


def encrypts(spark: Any) -> bool:
    """Whether Spark encrypts between its own processes; then the workers do so, too."""
    conf, names = spark.sparkContext.getConf(), ("network.crypto", "ssl.rpc")
    return any(conf.get(f"spark.{name}.enabled", "false").lower() == "true" for name in names)


def check_slots(
    spark: Any,
    wanted: int | None,
    more_come: float = MORE_COME,
    asked: Callable[[], bool] = lambda: False,
) -> int:
    """Return how many workers there will be; wait for executors that are still being started."""
    found, changed, enough = 0, time.monotonic(), math.inf if wanted is None else wanted
    several = spark.sparkContext.master.partition("[")[0] != "local"
    while found < enough:
        count, patience = _slots(spark), (more_come if wanted else 2.0) if found else PATIENCE
        if count != found:
            found, changed = count, time.monotonic()
        elif not several or time.monotonic() - changed > patience:
            break
        elif asked():
            raise RunStopped
        time.sleep(TICK)
    if not found:
        raise InputError(
            f"Spark has started no executor in {PATIENCE:.0f} seconds",
            "Check that the cluster has free cores, and memory for spark.executor.memory.",
        )
    if wanted is not None and wanted > found:
        raise InputError(
            f"{wanted} workers need {wanted} slots at the same time, and Spark has {found}",
            f"Use {found} worker{'s' * (found != 1)}, or give the application more cores "
            "(spark.cores.max, spark.executor.instances, spark.task.cpus).",
        )
    return wanted or found


def _slots(spark: Any) -> int:
    try:
        inner = spark.sparkContext._jsc.sc()
        profile = inner.resourceProfileManager().defaultResourceProfile()
        return int(inner.maxNumConcurrentTasks(profile))  # by which Spark judges barrier stages
    except Exception:  # not every Spark lets this be asked
        return int(spark.sparkContext.defaultParallelism)


def loss_in(text: str, workers: int) -> str:
    """Return Spark's message on a lost executor, or nothing; raise if slots are missing."""
    if "SPARK-24819" in text:
        raise InputError(
            f"{workers} workers need {workers} slots at the same time, and Spark has fewer",
            "Use fewer workers, or give the application more cores.",
        )
    if "SPARK-24942" in text:
        raise InputError(
            "Spark starts no workers side by side while executors come and go",
            "Set spark.dynamicAllocation.enabled=false.",
        )
    found = _LOST.search(text)
    return text[found.start() :].partition("\n")[0][:200] if found else ""
