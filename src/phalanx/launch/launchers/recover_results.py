"""Brings home what machines still have of a run whose controller went without a word."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.launcher import never
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.link.event_loop import EventLoop
from phalanx.launch.shipping.home.results import collect_results
from phalanx.launch.ssh.ssh_login import with_passwords
from phalanx.pool.machine import Machine


def salvage(machines: Sequence[Machine], paths: RunPaths, say: Say) -> dict[str, str]:
    """What is home is removed there, as at the end of any run.

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
