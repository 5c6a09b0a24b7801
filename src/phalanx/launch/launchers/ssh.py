"""Runs workers on several machines over SSH: an agent on each machine starts and watches them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import msgspec

from phalanx.core.errors import InputError, MachineError, PhalanxError, RunStopped
from phalanx.core.files import read_bounded
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.frameworks.seating import plan_for
from phalanx.launch.launcher import Job, Launch, Launcher, describe_launch, never
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.link.event_loop import EventLoop, cancel
from phalanx.launch.machines.reconnect import reconnect_seconds
from phalanx.launch.run.interrupts import await_end
from phalanx.launch.ssh.ssh_login import with_passwords
from phalanx.observe.machines.monitor import Monitor
from phalanx.pool.machine import Machine

_MOST_SWITCH = 1 << 16  # most bytes of a request to switch
_AFTER_KILL = 5.0
_CLEANING = 40.0
_CLOSING = 10.0


class SshLauncher(Launcher):
    """Starts workers as children of agents, with which an event loop in another thread talks."""

    _run: RemoteRun
    """The machines of the run and their connections; set by ``open``."""

    def __init__(self) -> None:
        self._loop: EventLoop | None = None
        self._job: Job | None = None
        self._paths: RunPaths | None = None
        self._launching: Future[None] | None = None
        self._look: Callable[[], bool] = never
        """Called during waits: shows news, and returns whether to stop."""
        self._switched = 0
        """When the file of ``phalanx switch`` was last changed."""

    def open(
        self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool], *, dry: bool = False
    ) -> Job:
        machines = tuple(with_passwords(job.fleet.machines))
        self._loop = EventLoop()
        self._run = RemoteRun(
            paths.id, machines, detach=job.fleet.detach, dry=dry, reconnect=reconnect_seconds()
        )
        self._look = self._saying(say, asked)
        say(f"connecting to {len(machines)} machine{'s' * (len(machines) != 1)}")
        try:
            found = self._loop.wait(self._run.connect(), self._look)
            self._say_news(say)
            return as_found(job, tuple(found))
        except BaseException:
            self._close()
            raise

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        assert self._loop
        self._job = job
        workers = self._loop.wait(self._run.prepare(job), self._look)
        return describe_launch(job, paths, workers)

    def start(self, launch: Launch, paths: RunPaths) -> None:
        assert self._job and self._loop
        self._paths = paths
        if self._job.fleet.detach:  # so that the workers can be found if we are killed
            paths.detached.touch()
        run = self._run
        self._launching = self._loop.submit(run.keep_error(run.launch(self._job, paths, launch)))

    def poll(self) -> dict[int, int]:
        if self._run.error is not None and self._loop is not None:
            raise self._run.error  # without a loop the run has ended: return its codes
        self._pass_switch_on()
        return dict(self._run.codes)

    def codes(self) -> dict[int, int]:
        return dict(self._run.codes)

    def _pass_switch_on(self) -> None:
        if self._paths is None or self._loop is None or not self._run.started:
            return
        try:
            changed = self._paths.switch.stat().st_mtime_ns
            if changed == self._switched:
                return
            self._switched = changed
            text = read_bounded(self._paths.switch, _MOST_SWITCH).decode(errors="replace")
        except (OSError, InputError):
            return
        self._loop.submit(self._run.switch(text))

    def lost(self) -> dict[int, MachineError]:
        return dict(self._run.lost)

    def away(self) -> dict[int, MachineError]:
        return self._run.absences.lost

    def alone(self) -> MachineError | None:
        return self._run.absences.alone

    def news(self) -> list[str]:
        """Return the news that are here now; those added meanwhile wait for the next call."""
        return [self._run.news.popleft() for _ in range(len(self._run.news))]

    def detached(self) -> bool:
        done = self._launching is not None and self._launching.done()
        run, job = self._run, self._job
        return bool(done and run.started and not run.error and job and job.fleet.detach)

    def leave(self) -> None:
        if self._paths is not None:
            self._paths.detached.touch()
        self._close(leave=True)

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        loop = self._loop
        if loop is None:
            return
        run = self._run
        if self._launching is not None and not self._launching.done():
            cancel(self._launching)
        run.say_unreachable()
        if run.all_ended():
            return
        loop.submit(run.stop(grace))
        await_end(run.all_ended, grace, hurry)
        if not run.all_ended():
            loop.submit(run.stop(0.0))
            await_end(run.all_ended, _AFTER_KILL, never)

    def finish(self, say: Say, hurry: Callable[[], bool]) -> None:
        loop, paths = self._loop, self._paths
        if loop is None:
            return
        run = self._run
        try:
            if paths is not None:
                try:
                    loop.wait(run.bring_home(paths), self._saying(say, hurry))
                except RunStopped:
                    run.news.extend(run.left_behind())
                except (PhalanxError, TimeoutError, OSError):
                    pass
                self._say_news(say)
            with contextlib.suppress(PhalanxError, RunStopped, TimeoutError, OSError):
                loop.wait(run.clean(), self._saying(say, hurry), _CLEANING)
        finally:
            self._close()
            if paths is not None:
                paths.detached.unlink(missing_ok=True)
            self._say_news(say)

    def monitors(self, launch: Launch, paths: RunPaths) -> list[Monitor]:
        return []  # agents read the use of their machines

    def _saying(self, say: Say, asked: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function to call during waits, which shows news and returns ``asked()``."""

        def look() -> bool:
            self._say_news(say)
            return asked()

        return look

    def _say_news(self, say: Say) -> None:
        for text in self.news():
            say(text)

    def _close(self, *, leave: bool = False) -> None:
        """Close the connections; with ``leave``, agents and workers go on."""
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(PhalanxError, TimeoutError, OSError):
                loop.wait(self._run.leave() if leave else self._run.close(), never, _CLOSING)
            loop.close()


def as_found(job: Job, machines: tuple[Machine, ...]) -> Job:
    """Plan the job again, with the resources that its machines were found to have."""
    plan = plan_for(
        machines,
        job.framework,
        job.fleet.workers,
        strategy=job.plan.strategy,
        selection=job.plan.selection,
        batch=job.plan.batch,
        servers=job.fleet.servers,
    )
    plan = msgspec.structs.replace(plan, predicted=job.plan.predicted)
    slow = job.settings.slow
    if slow is not None:
        slow = [*slow, *[1.0] * plan.workers][: plan.workers]
    settings = msgspec.structs.replace(job.settings, slow=slow, second_copy=job.fleet.detach)
    fleet = replace(job.fleet, machines=machines)
    return replace(job, plan=plan, settings=settings, fleet=fleet)
