"""``profile_job``: measures what a script costs on each kind of machine, by a short run there.

It is like any other run of strategy ``single``, except that its folder is temporary. A profile is
kept in the user's cache by the content of what it depends on, and read from there the next time.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.agent.machine.facts import machine_id
from phalanx.core.errors import BAD_INPUT, InputError, MachineError, PhalanxError, RunStopped
from phalanx.core.files import read_bounded, read_tail
from phalanx.core.run_folder.run_paths import RunPaths, slug
from phalanx.core.settings import RunSettings
from phalanx.core.terminal import Say
from phalanx.launch.launcher import Fleet, Job
from phalanx.launch.pool.pool_check import check_pool
from phalanx.launch.profile.kept_profiles import Kinds, job_key, keep, read_kept
from phalanx.launch.run.controller import execute
from phalanx.launch.run.failure import never_joined, told_by
from phalanx.launch.run.interrupts import Interrupts
from phalanx.launch.run.observer import Observer
from phalanx.launch.script.script_check import check_script, is_adopted
from phalanx.launch.ssh.ssh_login import with_passwords
from phalanx.plan.job import JobProfile, MachineCosts
from phalanx.plan.plan import make_plan
from phalanx.pool.here import this_machine
from phalanx.pool.machine import Machine, Pool
from phalanx.pool.measured import read_probe

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

OWN_WORDS = "phalanx: "
_TICK = 0.05
_LAST_LINES = 5
_PATIENCE = 40
"""Ticks to wait for runs that also got Ctrl-C to end; a second signal ends the wait."""


def profile_job(
    script: Path,
    args: Sequence[str],
    pool: Pool,
    machines: Sequence[Machine],
    *,
    seconds: float = 10.0,
    quick: bool = False,
    settings: RunSettings | None = None,
    fleet: Fleet | None = None,
    say: Say = lambda _line: None,
) -> JobProfile:
    """Return the costs of ``script`` on each of ``machines``; those of one kind share them.

    Each kind is measured for about ``seconds`` of steps, those of one host in turn; ``quick``: only
    this machine, and others are estimated from the probe. ``settings`` and ``fleet`` are those of
    the run to be planned. Call it from the main thread.
    """
    if not machines:
        raise InputError("there is no machine to measure on", "Select at least one.")
    check_script(script)
    blueprint = Path(pool.source) if Path(pool.source).is_file() else None
    kinds = Kinds(read_probe(blueprint) if blueprint else None)
    chosen = settings or RunSettings(adopt=is_adopted(script))
    fleet = fleet or Fleet(pool=blueprint, tls=pool.tls)
    work = _Work(script, list(args), chosen, fleet, seconds, say)
    measured = machines
    if quick:
        here = next((m for m in (*machines, *pool.machines) if m.is_here), None)
        measured = [here or this_machine().machines[0]]
    found, source = work.measured({kinds.name(m): m for m in measured}), measured[0]

    def costs(machine: Machine) -> MachineCosts:
        guessed = quick and machine is not source
        (own,) = found[kinds.name(source if guessed else machine)].costs.values()
        return kinds.scaled(own, source, machine) if guessed else own

    every = {machine.name: costs(machine) for machine in machines}
    return msgspec.structs.replace(found[kinds.name(source)], costs=every)


def plain_settings(chosen: RunSettings, seconds: float | None = None) -> RunSettings:
    """Return the settings of a run that only measures."""
    return msgspec.structs.replace(
        chosen, strategy="single", profile=seconds, profile_steps=0, slow=None, rate=None,
        checkpoint_epochs=0, checkpoint_gap=0.0, checkpoint_minutes=None, resume=None,
        private_weights=False, second_copy=False, balance="off", on_nonfinite="skip", keep=3,
    )  # fmt: skip


@dataclass(frozen=True)
class _Work:
    script: Path
    arguments: list[str]
    chosen: RunSettings
    fleet: Fleet
    seconds: float
    say: Say

    def measured(self, machines: Mapping[str, Machine]) -> dict[str, JobProfile]:
        """Return one profile for each kind of machine: a kept one, or that of a short run."""
        key = job_key(self.script, self.arguments, plain_settings(self.chosen))
        kept = {kind: read_kept(key, kind) for kind in machines}
        found = {kind: profile for kind, profile in kept.items() if profile is not None}
        missing = {kind: m for kind, m in machines.items() if kind not in found}
        with tempfile.TemporaryDirectory(prefix="phalanx-profile-") as folder:
            name = f"profile-{slug(self.script.stem)[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
            places = [RunPaths(Path(folder) / f"{name}-{n}") for n in range(len(missing))]
            runs = [partial(self._run, *one) for one in zip(missing.values(), places, strict=True)]
            on_host: dict[str, list[Callable[[], None]]] = {}
            for host, run in zip(_hosts(list(missing.values())), runs, strict=True):
                on_host.setdefault(host, []).append(run)
            if len(on_host) > 1:
                side_by_side([partial(_in_turn, works) for works in on_host.values()])
            else:
                _in_turn(runs)
            for kind, paths in zip(missing, places, strict=True):
                if (profile := _read(paths)) is not None:
                    found[kind] = msgspec.structs.replace(profile, key=key)
                    keep(key, kind, found[kind])
        return found

    def _run(self, machine: Machine, paths: RunPaths) -> None:
        """Make one run in a folder of its own."""
        self.say(f"measuring a few steps on {machine.name}, {self.seconds:g} seconds")
        outcome = execute(self._job(machine), paths.make(), _Listener(self.say))
        if outcome.summary.status == "stopped":
            raise RunStopped
        error = outcome.error
        if error is None and _read(paths) is not None:
            return
        if error is None or error.cause == never_joined(str(self.script)).cause:
            raise InputError(
                "the script ended without a step",
                "A profile measures steps of training: give it the arguments with which it trains.",
            )
        cause = error.cause.replace(f" (log: {paths.log_of(0)})", "")
        remedy = error.remedy
        if not told_by(0, paths):  # the reason is only in its log, which is removed with the folder
            printed = read_tail(paths.log_of(0), 1 << 12).splitlines()
            lines = [line for line in printed if line.strip() and not line.startswith(OWN_WORDS)]
            for line in lines[-_LAST_LINES:]:
                self.say(line)
            if outcome.summary.exit_codes == [BAD_INPUT]:  # as argparse ends a script
                remedy = "The script's own arguments go after --: phalanx plan SCRIPT -- …"
        raise type(error)(cause, remedy)

    def _job(self, machine: Machine) -> Job:
        data = self.chosen.data or (machine.data if machine.is_here else None)
        settings = plain_settings(self.chosen, self.seconds)
        return Job(
            script=self.script,
            arguments=self.arguments,
            settings=msgspec.structs.replace(settings, data=data),
            plan=make_plan(
                [machine], workers=None, strategy="single", selection=machine.name, batch=None
            ),
            launcher="local" if machine.is_here else "ssh",
            command=sys.argv,
            fleet=replace(self.fleet, machines=(machine,), detach=False, workers=None),
        )


def _hosts(machines: Sequence[Machine]) -> list[str]:
    """Return the host of each machine, by its kernel's boot id: emulated machines and containers
    share one, and would be measured too slow if several were measured at once."""
    if len(machines) < 2:
        return [machine.name for machine in machines]
    remote = with_passwords(machine for machine in machines if not machine.is_here)
    visits = asyncio.run(check_pool(remote)).visits if remote else []
    ids = {v.machine.name: v.facts.machine_id for v in visits if v.facts is not None}
    ids |= {machine.name: machine_id() for machine in machines if machine.is_here}
    return [ids.get(machine.name, machine.name).partition(".")[0] for machine in machines]


def _in_turn(works: Sequence[Callable[[], None]]) -> None:
    for work in works:
        work()


def _read(paths: RunPaths) -> JobProfile | None:
    try:
        return msgspec.json.decode(read_bounded(paths.profile), type=JobProfile)
    except (OSError, msgspec.MsgspecError, PhalanxError):
        return None


class _Listener(Observer):
    def __init__(self, say: Say) -> None:
        self._say = say

    def note(self, text: str) -> None:
        self._say(text)

    def output(self, rank: int, line: str) -> None:
        if line.startswith(OWN_WORDS):
            self._say(line.removeprefix(OWN_WORDS))

    def failure(self, rank: int, line: str) -> None:
        self._say(line)


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Do all works, each in its own process: a controller handles signals, and ends all children of
    its process. If one work fails, the others are stopped, and its error is raised."""
    forking = multiprocessing.get_context("fork")
    errors: SimpleQueue[PhalanxError] = forking.SimpleQueue()
    running = [forking.Process(target=_run, args=(work, errors)) for work in works]
    with Interrupts() as interrupts:
        for process in running:
            process.start()
        ended, asked = False, 0
        while any(process.is_alive() for process in running):
            time.sleep(_TICK)
            asked += interrupts.asked()
            if not ended and (asked > _PATIENCE or not errors.empty()):
                ended = True
                for process in running:
                    process.terminate()
    if interrupts.asked():
        raise RunStopped
    if not errors.empty():
        raise errors.get()
    if lost := next((process for process in running if process.exitcode), None):
        raise MachineError(f"a measuring process ended with exit code {lost.exitcode}")


def _run(work: Callable[[], None], errors: SimpleQueue[PhalanxError]) -> None:
    try:
        work()
    except RunStopped:
        return
    except PhalanxError as error:
        errors.put(error)
