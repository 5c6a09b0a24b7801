"""A detached run taken up again: its agents are still there, and so is all they have to tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phalanx.core.run_paths import RunPaths
from phalanx.launch.event_loop import EventLoop
from phalanx.launch.launcher import Job, Launch, Say, never
from phalanx.launch.remote_run import RemoteRun
from phalanx.launch.ssh import SshLauncher
from phalanx.launch.ssh_login import with_passwords


class AttachedLauncher(SshLauncher):
    """Starts nothing: finds the workers that run, or how they ended."""

    def open(self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool]) -> Job:
        machines = with_passwords(job.fleet.machines)
        self._loop = EventLoop()
        self._run = RemoteRun(paths.id, machines, attach=True)
        try:
            self._loop.wait(self._run.connect(), asked)
        except BaseException:
            self._let_go()
            raise
        return replace(job, fleet=replace(job.fleet, detach=False))

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        """As it was written down when it was started."""
        self._job = job
        return Launch.from_json(paths.launch.read_bytes())

    def start(self, launch: Launch, paths: RunPaths) -> None:
        assert self._job and self._loop and self._run
        self._paths = paths
        # Who stops a run before it knows the workers would stop nobody.
        self._loop.wait(self._run.rejoin(self._job, paths), never)
