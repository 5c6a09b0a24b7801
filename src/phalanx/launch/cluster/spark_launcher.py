"""Workers as processes beside the tasks of a barrier stage, in an application of Spark of our own.

Spark carries no questions to a task that runs, so the tasks connect to the controller: it listens
where Spark's driver does, to those alone that prove the key of this run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from phalanx.core.background import BackgroundThread
from phalanx.core.errors import MachineLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.cluster.node import own_address
from phalanx.launch.cluster.seat_launcher import SeatLauncher
from phalanx.launch.cluster.seats import SeatLost, on_cluster
from phalanx.launch.cluster.spark_session import (
    LOG,
    check_slots,
    check_spark,
    connect,
    encrypts,
    why_ended,
)
from phalanx.launch.cluster.spark_task import receive, send, sit
from phalanx.launch.launcher import Job
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.listener import Listener

_ANSWER, _LEAVING = 12.0, 5.0
"""Seconds: a seat answers at once, or is lost; unneeded tasks end soon."""


class SparkLauncher(SeatLauncher):
    """Starts workers on Spark; its seats are tasks, all of which Spark ends when it loses one."""

    cluster, check, together = "Spark", f"See logs/{LOG} in the run's folder.", True

    def __init__(self) -> None:
        super().__init__()
        self._spark: Any = None
        self._listener: Listener | None = None
        self._stage: Future[None] | None = None
        self._channels: dict[int, Channel] = {}

    def open(
        self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool], *, dry: bool = False
    ) -> Job:
        check_spark()
        planned = on_cluster(job, "spark", job.plan.workers)
        if dry:
            return planned
        self._spark = connect(job.fleet.cluster, paths, asked)
        try:
            workers = check_slots(self._spark, job.fleet.workers, asked=asked)
        except BaseException:
            self._release()
            raise
        self._tls = encrypts(self._spark)
        say(f"connected to Spark at {self._spark.sparkContext.master}")
        return on_cluster(job, "spark", workers)

    def _place(self, count: int, folder: str, mark: str) -> Iterator[None]:
        address = own_address(self._spark.sparkContext.getConf().get("spark.driver.host"))
        key = RunKey.new()
        listener = self._listener = Listener(address, key, tls=self._tls)
        function = partial(
            sit, address=address, port=listener.port, tls=self._tls, key=key.text(), folder=folder,
            mark=mark,
        )  # fmt: skip
        stage = BackgroundThread("phalanx-spark").submit(self._run_stage, count, function)
        self._stage = stage
        while len(self._channels) < count:
            if channel := listener.accept(0):
                self._channels[channel.introduction.caller] = channel
            elif stage.done():
                ended = stage.exception() or Exception("its tasks ended before the workers began")
                raise SeatLost(why_ended(ended, count))
            yield

    def _run_stage(self, count: int, function: Callable[..., Iterator[int]]) -> None:
        """Run the stage; return when its tasks have ended."""
        rows = self._spark.sparkContext.parallelize(range(count), count)
        rows.barrier().mapPartitions(function).collect()

    def _ask(self, rank: int, method: str, *given: Any) -> tuple[str, Any]:
        """Call ``method`` of a worker's seat; return its error, if any, and its answer."""
        channel = self._channels[rank]
        try:
            send(channel, (method, given))
            if not channel.poll(_ANSWER):
                channel.close()
            error, answer = receive(channel)
            return error, answer
        except MachineLost as lost:
            return lost.cause, None

    def _answered(self, questions: Sequence[tuple[str, Any]]) -> bool:
        return True

    def _answer(self, question: tuple[str, Any], seconds: float = 0.0) -> Any:
        if question[0]:
            raise SeatLost(question[0])
        return question[1]

    def _release(self) -> None:
        for channel in self._channels.values():
            channel.close()
        if self._listener is not None:
            self._listener.close()
        if self._stage is not None:
            wait([self._stage], _LEAVING)
        if self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()
            self._spark.stop()
            self._spark = None
