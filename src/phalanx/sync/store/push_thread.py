"""Who makes a push: the worker itself, or a thread beside it while the next step computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch

Job = Callable[[], None]


class Pusher:
    """The worker itself: a push is over when ``carry`` returns."""

    def carry(self, job: Job) -> None:
        """Do ``job``, now or soon."""
        job()

    def wait(self) -> None:
        """Return when the last job is done."""


class PushThread(Pusher):
    """A thread: the next step computes on parameters without this worker's last push.

    On a GPU in a stream of its own: in that of the training a copy would wait for the step, with
    a shard locked.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="phalanx-push")
        self._under_way: Future[None] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def carry(self, job: Job) -> None:
        self._under_way = self._pool.submit(self._aside, job)

    def _aside(self, job: Job) -> None:
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            job()

    def wait(self) -> None:
        if self._under_way is not None:
            done, self._under_way = self._under_way, None
            done.result()


class PushLater(Pusher):
    """The same order without a thread, so that a scripted run can be repeated."""

    def __init__(self) -> None:
        self._job: Job | None = None

    def carry(self, job: Job) -> None:
        self._job = job

    def wait(self) -> None:
        if self._job is not None:
            job, self._job = self._job, None
            job()


def make_pusher(overlap: bool, device: torch.device, *, scripted: bool) -> Pusher:
    if not overlap:
        return Pusher()
    return PushLater() if scripted else PushThread(device)
