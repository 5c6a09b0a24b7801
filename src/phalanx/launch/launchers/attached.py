"""A detached run taken up again: its agents are still there, and so is all they have to tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from phalanx.core.errors import PhalanxError
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.launcher import Job, Launch, never, read_launch
from phalanx.launch.launchers.recover_results import salvage
from phalanx.launch.launchers.remote_run import NothingLeft, RemoteRun
from phalanx.launch.launchers.ssh import SshLauncher
from phalanx.launch.link.event_loop import EventLoop
from phalanx.launch.machines.reconnect import reconnect_seconds
from phalanx.launch.run.controller import Controller, RunOutcome
from phalanx.launch.run.interrupts import Interrupts
from phalanx.launch.run.observer import Observer
from phalanx.launch.ssh.ssh_login import with_passwords
from phalanx.observe.summary.summary import summarise


def take_over(job: Job, paths: RunPaths, observer: Observer) -> RunOutcome:
    """Be the controller of a run that was left alone, until its end."""
    launcher = AttachedLauncher()
    try:
        with Interrupts() as interrupts:
            job = launcher.open(job, paths, observer.note, interrupts.asked)
            try:
                launch = launcher.prepare(job, paths)
                controller = Controller(launcher, launch, paths, observer, interrupts)
            except BaseException:
                launcher.leave()
                raise
            return controller.run()
    except NothingLeft as error:
        # No machine runs it any more: bring home what is left, and write down what is known.
        with contextlib.suppress(PhalanxError):
            salvage(job.fleet.machines, paths, observer.note)
        paths.detached.unlink(missing_ok=True)
        summary = summarise(paths)
        write_whole(paths.summary, summary.to_json() + "\n")
        return RunOutcome(summary, error, error.exit_code)


class AttachedLauncher(SshLauncher):
    """Starts nothing: finds the workers that run, or how they ended."""

    def open(
        self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool], *, dry: bool = False
    ) -> Job:
        machines = with_passwords(job.fleet.machines)
        self._loop = EventLoop()
        self._run = RemoteRun(paths.id, machines, attach=True, reconnect=reconnect_seconds())
        try:
            self._loop.wait(self._run.connect(), self._saying(say, asked))
        except BaseException:
            self._close(leave=True)
            raise
        return replace(job, fleet=replace(job.fleet, detach=False))

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        """Returns the launch that was written down when the run was started."""
        self._job = job
        return read_launch(paths)[0]

    def start(self, launch: Launch, paths: RunPaths) -> None:
        assert self._job and self._loop and self._run
        self._paths = paths
        # Who stops a run before it knows the workers would stop nobody.
        self._loop.wait(self._run.keep_error(self._run.rejoin(self._job, paths)), never)
