"""Starts one process per slot on this machine, each in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from phalanx.agent import system
from phalanx.agent.machine.reach import free_port
from phalanx.core import settings
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.frameworks.framework import Framework
from phalanx.launch.frameworks.seating import places_of
from phalanx.launch.launcher import (
    Job,
    Launch,
    Launcher,
    WorkerCommand,
    describe_launch,
    never,
    with_own_threads,
    worker_command,
)
from phalanx.launch.launchers.foreign_commands import MachineContext, commands_of
from phalanx.launch.run.interrupts import await_end
from phalanx.launch.worker import keras_figures
from phalanx.launch.worker import process_binding as tied
from phalanx.sync.arena import memfd

_LOOPBACK = "127.0.0.1"
_TICK = 0.02
_AFTER_KILL = 2.0
"""Seconds to wait for killed processes to end; the kernel cannot end every process."""


class LocalLauncher(Launcher):
    """Starts workers as child processes of the controller."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._codes: dict[int, int] = {}
        self._others: set[int] | None = None
        """Children of this process that do not belong to the run; ``None`` before its start."""

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        if job.plan.remote:
            raise InputError(
                f"the launcher 'local' cannot reach {', '.join(job.plan.remote)}",
                "Select machines with 'host: here': this launcher starts workers on this machine "
                "only.",
            )
        if job.plan.workers > memfd.MAX_WORKERS:
            raise InputError(
                f"{job.plan.workers} workers are too many for one machine",
                f"Use --workers {memfd.MAX_WORKERS} or fewer.",
            )
        if job.framework is not None:
            return describe_launch(job, paths, _foreign_commands(job, job.framework, paths))
        folder = str(paths.folder.absolute())
        workers = [
            worker_command(job, folder, machine, with_own_threads(slot, os.environ))
            for machine, slot in job.plan.seats
        ]
        return describe_launch(job, paths, workers)

    def start(self, launch: Launch, paths: RunPaths) -> None:
        # Adopt processes that workers leave behind, also those that left their group (setsid).
        self._others = set(system.children())
        system.adopt_orphans()
        several = len(launch.workers) > 1  # one worker needs no shared memory
        arena = memfd.create(len(launch.workers)) if launch.joins and several else None
        try:
            for worker in launch.workers:
                self._running[worker.rank] = _spawn(worker, paths, arena)
        finally:
            if arena is not None:
                os.close(arena)  # the workers have their own copies

    def poll(self) -> dict[int, int]:
        for rank, process in list(self._running.items()):
            if not system.has_ended(process.pid):
                continue
            # Until its leader is reaped, no other group can get this group's number.
            system.signal_group(process.pid, signal.SIGKILL)
            code = process.poll()
            if code is not None:
                self._codes[rank] = code
                del self._running[rank]
        return dict(self._codes)

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        self._signal_all(signal.SIGTERM)
        await_end(self._have_ended, grace, hurry)
        self._signal_all(signal.SIGKILL)
        await_end(self._have_ended, _AFTER_KILL, never)

    def finish(self, say: Say, hurry: Callable[[], bool]) -> None:
        """Kill the processes that workers started and left running, until none is left."""
        if self._others is None:
            return
        deadline = time.monotonic() + _AFTER_KILL
        while time.monotonic() < deadline:
            left = set(system.children()) - self._others - set(self.processes())
            if not left:
                break
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(_TICK)
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 0)

    def processes(self) -> list[int]:
        return [process.pid for process in list(self._running.values())]

    def _signal_all(self, number: signal.Signals) -> None:
        self.poll()
        for process in self._running.values():
            system.signal_worker(process.pid, number)

    def _have_ended(self) -> bool:
        self.poll()
        return not self._running


def _foreign_commands(job: Job, framework: Framework, paths: RunPaths) -> list[WorkerCommand]:
    """Return commands that use the framework's Python, and that end with this process."""
    seats = job.plan.seats
    context = MachineContext(
        python=framework.python or sys.executable,
        script=str(job.script),
        run_folder=str(paths.folder.absolute()),
        data=job.settings.data,
        before=(sys.executable, "-I", "-S", str(tied.__file__)),
        figures=str(keras_figures.__file__),
    )
    names = {machine.name for machine, _ in seats}
    ports = dict(zip((slot.rank for _, slot in seats), free_ports(len(seats)), strict=True))
    addresses = dict.fromkeys(names, _LOOPBACK)
    places = places_of(job.plan, framework, paths.id, addresses, ports)
    return commands_of(job, framework, places, dict.fromkeys(names, context))


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback; each is held until the last is found, so all differ."""
    with contextlib.ExitStack() as held:
        return [free_port(held, _LOOPBACK) for _ in range(count)]


def _spawn(worker: WorkerCommand, paths: RunPaths, arena: int | None) -> subprocess.Popen[bytes]:
    env = dict(os.environ)
    env.pop(settings.ARENA, None)  # this process may be a worker of another run
    env |= {**worker.env, settings.STARTED: repr(time.monotonic())}
    env[settings.CONTROLLER] = str(os.getpid())
    if arena is not None:
        env[settings.ARENA] = str(arena)
    with (paths.folder / worker.log).open("ab") as log:
        return subprocess.Popen(
            worker.argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=() if arena is None else (arena,),
        )
