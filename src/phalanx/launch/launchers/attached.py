"""Takes control of a run that its controller left, if its agents still run; otherwise fetches the
files of the run that are still on its machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from phalanx.core.errors import MachineError, PhalanxError
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.launcher import Job, Launch, never, read_launch
from phalanx.launch.launchers.remote_run import NothingLeft, RemoteRun
from phalanx.launch.launchers.ssh import SshLauncher
from phalanx.launch.link.event_loop import EventLoop
from phalanx.launch.machines.reconnect import reconnect_seconds
from phalanx.launch.run.controller import Controller, RunOutcome
from phalanx.launch.run.interrupts import Interrupts
from phalanx.launch.run.kept_notes import KeptNotes
from phalanx.launch.run.observer import Observer
from phalanx.launch.shipping.home.results import collect_results
from phalanx.launch.ssh.ssh_login import with_passwords
from phalanx.observe.summary.summary import summarise
from phalanx.pool.machine import Machine


def take_over(job: Job, paths: RunPaths, observer: Observer) -> RunOutcome:
    """Become the controller of a run that was left alone, until its end."""
    launcher = AttachedLauncher()
    observer = KeptNotes(paths, observer)
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
        # No machine runs it any more: fetch what is left, and write down what is known.
        with contextlib.suppress(PhalanxError):
            salvage(job.fleet.machines, paths, observer.note)
        paths.detached.unlink(missing_ok=True)
        summary = summarise(paths)
        write_whole(paths.summary, summary.to_json() + "\n")
        return RunOutcome(summary, error, error.exit_code)


class AttachedLauncher(SshLauncher):
    """A launcher that starts nothing: it finds the workers that run, or how they ended."""

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
        """Return the launch that was written down when the run was started."""
        self._job = job
        return read_launch(paths)[0]

    def start(self, launch: Launch, paths: RunPaths) -> None:
        assert self._job and self._loop
        self._paths = paths
        # Not to be interrupted: a stop before the workers are known would stop none of them.
        self._loop.wait(self._run.keep_error(self._run.rejoin(self._job, paths)), never)


def salvage(machines: Sequence[Machine], paths: RunPaths, say: Say) -> dict[str, str]:
    """Fetch what a run left on machines, and remove it there, as at the end of any run.

    Returns the machines that could not be asked, each with the reason.
    """
    loop, run = EventLoop(), RemoteRun(paths.id, with_passwords(machines))
    try:
        return loop.wait(_salvage(run, paths, say), never)
    finally:
        loop.wait(run.close(), never)
        loop.close()


async def _salvage(run: RemoteRun, paths: RunPaths, say: Say) -> dict[str, str]:
    silent = await run.connect_some()
    there = [member for member in run.members if member.name not in silent]
    for member in there:
        try:
            await member.fetch_samples(paths)
        except MachineError as error:
            say(error.cause)
    came = await collect_results([member.link for member in there], paths)
    await run.clean()
    for text in (*came.notes, *run.news):
        say(text)
    return silent
