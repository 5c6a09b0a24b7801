"""Runs workers as threads of this process, for debuggers and exact repeats.

The threads share ``sys.argv``, ``sys.path``, imported modules and the random generators, which are
seeded when each thread begins; each executes the script in its own namespace. Only one thread runs
at a time, and when it waits inside the arena, the seed decides which thread is next: so their order
and the random numbers that each draws repeat exactly, also in an asynchronous run. A script whose
workers wait for each other by other means (a file, a lock of its own) hangs here. A thread
cannot be killed: one that stays inside a long call into native code ends with the process.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, cast

from phalanx.core import settings
from phalanx.core.context import WorkerContext, enter
from phalanx.core.errors import SCRIPT_FAILED, MachineError, PeerLost, RunStopped
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.startup import run_startup
from phalanx.launch.launcher import (
    Job,
    Launch,
    Launcher,
    WorkerCommand,
    describe_launch,
    log_name,
    never,
    worker_variables,
)
from phalanx.launch.run.interrupts import await_end
from phalanx.launch.worker.script_runner import (
    PEER_LOST_CODE,
    STOPPED_CODE,
    import_folders,
    main_module,
    run_script,
)
from phalanx.observe.machines.monitor import Monitor

if TYPE_CHECKING:
    from phalanx.sync.arena.memory_arena import Hub

_POLITE = 0.5
"""Seconds that threads get to notice the aborted hub before they are interrupted."""


class InProcessLauncher(Launcher):
    """Starts workers as daemon threads that share a memory hub."""

    def __init__(self) -> None:
        self._threads: dict[int, threading.Thread] = {}
        self._codes: dict[int, int] = {}
        self._streams = RankStreams()
        self._hub: Hub | None = None
        self._before: tuple[list[str], list[str], int] | None = None

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        workers = [
            WorkerCommand(
                rank=slot.rank,
                machine=machine.name,
                argv=[str(job.script), *job.arguments],
                env=worker_variables(job, str(paths.folder.absolute()), machine, slot),
                cpus=[],
                threads=1,
                log=log_name(slot.rank),
            )
            for machine, slot in job.plan.seats
        ]
        return describe_launch(job, paths, workers)

    def start(self, launch: Launch, paths: RunPaths) -> None:
        from phalanx.sync.arena.memory_arena import Hub, compute_with

        chosen = launch.settings
        lock = 0.0 if chosen.virtual else None
        self._hub = Hub(len(launch.workers), seed=chosen.seed, lock_seconds=lock)
        # One worker computes at a time, and sums in a fixed order.
        self._before = sys.argv, sys.path, compute_with(threads=1)
        sys.argv = [launch.script, *launch.arguments]
        named = launch.settings.module
        sys.path = [*import_folders(launch.script, named), *sys.path]
        self._streams.install()
        for worker in launch.workers:
            thread = threading.Thread(
                target=self._work,
                args=(worker, launch, paths, self._hub),
                name=f"phalanx-rank-{worker.rank}",
                daemon=True,
            )
            self._threads[worker.rank] = thread
            thread.start()

    def poll(self) -> dict[int, int]:
        return dict(self._codes)

    def lost(self) -> dict[int, MachineError]:
        found = self._hub.lost if self._hub is not None else {}
        return {rank: MachineError(words) for rank, words in found.items()}

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        if self._hub is not None and self._running():
            self._hub.abort()
            await_end(lambda: not self._running(), min(grace, _POLITE), hurry)
            # RunStopped is raised in the threads, at their next Python instruction.
            for thread in self._running():
                identity = ctypes.c_ulong(thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(RunStopped))
            await_end(lambda: not self._running(), grace - _POLITE, hurry)
        self._streams.remove()
        if self._before is not None:
            from phalanx.sync.arena.memory_arena import compute_with

            sys.argv, sys.path, threads = self._before
            compute_with(threads)
            self._before = None

    def processes(self) -> list[int]:
        return [os.getpid()] if self._running() else []

    def monitors(self, launch: Launch, paths: RunPaths) -> list[Monitor]:
        # The use of this machine says nothing about virtual machines.
        return [] if launch.settings.virtual else super().monitors(launch, paths)

    def _work(self, worker: WorkerCommand, launch: Launch, paths: RunPaths, hub: Hub) -> None:
        """Run one worker, as the function of its thread."""
        code = 1
        try:
            with (paths.folder / worker.log).open("a", buffering=1, encoding="utf-8") as log:
                self._streams.assign(log)
                env = {**worker.env, settings.STARTED: repr(time.monotonic())}
                context = WorkerContext(env, hub)
                enter(context)
                with hub.turn(worker.rank):
                    # Every worker begins with the same seed, until it joins.
                    run_startup(adopt=launch.settings.adopt)
                    main = main_module(launch.script, launch.settings.module)
                    code = run_script(main, paths.traceback_of(worker.rank))
                    for call in reversed(context.at_end):
                        call()
                    if code == 0 and paths.traceback_of(worker.rank).exists():
                        code = SCRIPT_FAILED  # it failed at its end, where no exception is raised
                    if code != 0:
                        hub.abort()  # before the next thread runs
        except PeerLost:  # raised before its first turn
            code = PEER_LOST_CODE
        except RunStopped:
            code = STOPPED_CODE
        finally:
            self._codes[worker.rank] = code
            if code != 0:
                hub.abort()

    def _running(self) -> list[threading.Thread]:
        return [thread for thread in self._threads.values() if thread.is_alive()]


class RankStreams:
    """Redirects the output of threads that were assigned a file; other threads write as before."""

    def __init__(self) -> None:
        self._files = threading.local()
        self._before: tuple[TextIO, TextIO] | None = None

    def install(self) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout = cast(TextIO, _Router(self._current, sys.stdout))
        sys.stderr = cast(TextIO, _Router(self._current, sys.stderr))

    def remove(self) -> None:
        if self._before is not None:
            sys.stdout, sys.stderr = self._before
            self._before = None

    def assign(self, file: TextIO) -> None:
        """Redirect what the calling thread prints to ``file`` from now on."""
        self._files.file = file

    def _current(self) -> TextIO | None:
        return getattr(self._files, "file", None)


class _Router:
    """A text stream that writes to the calling thread's file, else to ``default``."""

    def __init__(self, current: Callable[[], TextIO | None], default: TextIO) -> None:
        self._current = current
        self._default = default

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current() or self._default, name)
