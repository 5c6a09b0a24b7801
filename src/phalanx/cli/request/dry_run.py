"""``--dry-run``: show exactly what would be started."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from phalanx.cli.output import Output
from phalanx.core.run_folder.run_paths import RunPaths, runs_home, slug
from phalanx.launch.launcher import LAUNCHERS, Job, Launch, Launcher, describe_launch
from phalanx.launch.run.interrupts import Interrupts


def show(jobs: list[tuple[str, Job]], out: Output) -> int:
    """Print every ``(name, job)``; write no file and start no worker."""
    launches = []
    for name, job in jobs:
        job, launch = _rehearsed(name, job, out)
        launches.append({"plan": msgspec.to_builtins(job.plan), **msgspec.to_builtins(launch)})
        _print(name, job, launch, out)
    result: dict[str, Any] = {"dry_run": True, "launches": launches}
    out.result(result)
    return 0


def _rehearsed(name: str, job: Job, out: Output) -> tuple[Job, Launch]:

    # The id of a real run begins with the time of its start, which is not known yet.
    paths = RunPaths(runs_home().absolute() / f"TIME-{slug(name)}")
    typed = [machine.name for machine in job.fleet.machines if machine.asks_for_password]
    if job.launcher == "ssh" and typed:
        out.note(
            f"not connected: the password of {', '.join(typed)} would have to be typed; this is "
            "what the blueprint says, and commands are known after connecting"
        )
        from phalanx.launch.launchers.ssh import as_found

        job = as_found(job, job.fleet.machines)
        return job, describe_launch(job, paths, [])
    launcher: Launcher = LAUNCHERS.get(job.launcher)()
    with Interrupts() as interrupts:
        try:
            job = launcher.open(job, paths, out.note, interrupts.asked, dry=True)
            return job, launcher.prepare(job, paths)
        finally:
            launcher.finish(out.note, interrupts.insisted)


def _print(name: str, job: Job, launch: Launch, out: Output) -> None:
    plan = job.plan
    out.say(f"{name}: {plan.workers} worker{'s' * (plan.workers != 1)}, {job.launcher}", "bold")
    for reason in plan.reasons:
        out.say(f"  {reason}")
    if launch.batch_script:
        for line in launch.batch_script.splitlines():
            out.say(line)
        return
    for machine, slot in plan.seats if not launch.workers else ():
        out.say(f"  rank {slot.rank} on {machine.name}")
    for worker in launch.workers:
        cores = ",".join(map(str, worker.cpus)) or "any"
        threads = f"{worker.threads} thread{'s' * (worker.threads != 1)}"
        out.say(f"  rank {worker.rank} on {worker.machine}: cores {cores}, {threads}")
        out.say(f"    log      {worker.log}")
        for variable, value in sorted(worker.env.items()):
            out.say(f"    setting  {variable}={shlex.quote(value)}")
        out.say(f"    command  {shlex.join(worker.argv)}")
