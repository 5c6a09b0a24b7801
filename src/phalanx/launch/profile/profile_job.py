"""``profile_job``: what a script costs on each kind of machine, measured there by a short run.

Such a run goes the way of every run of strategy ``single``; its folder is temporary. A profile is
kept in the user's cache by the content of what it depends on, and read from there the next time.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError, PhalanxError, RunStopped
from phalanx.core.files import read_bounded
from phalanx.core.run_folder.run_paths import RunPaths, slug
from phalanx.core.settings import ProfileWish, RunSettings
from phalanx.core.terminal import Say
from phalanx.launch.launchers.launcher import Fleet, Job
from phalanx.launch.profile.kept_profiles import job_key, keep, read_kept
from phalanx.launch.profile.machine_kinds import Kinds
from phalanx.launch.profile.side_by_side import side_by_side
from phalanx.launch.run.controller import execute
from phalanx.launch.run.failure import never_joined
from phalanx.launch.run.observer import Observer
from phalanx.launch.script.script_check import check_script, is_adopted
from phalanx.plan.job import JobProfile, MachineCosts
from phalanx.plan.plan import make_plan
from phalanx.pool.here import this_machine
from phalanx.pool.machine import Machine, Pool
from phalanx.pool.measured import read_probe

OWN_WORDS = "phalanx: "


def _silent(_line: str) -> None:
    pass


def profile_job(
    script: Path,
    args: Sequence[str],
    pool: Pool,
    machines: Sequence[Machine],
    *,
    seconds: float = 10.0,
    quick: bool = False,
    fresh: bool = False,
    settings: RunSettings | None = None,
    fleet: Fleet | None = None,
    say: Say = _silent,
) -> JobProfile:
    """Costs of ``script`` on each of ``machines``; machines of the same kind share them.

    Each kind is measured for about ``seconds`` of steps, all at the same time; ``quick``: this
    machine only, and the others by what the probe says of their speeds. ``fresh``: whatever was
    measured before. ``settings`` and ``fleet`` are those of the run to be planned, as far as the
    command line says more than their defaults. Call it from the main thread.
    """
    if not machines:
        raise InputError("there is no machine to measure on", "Select at least one.")
    check_script(script)
    blueprint = Path(pool.source) if Path(pool.source).is_file() else None
    kinds = Kinds(read_probe(blueprint) if blueprint else None)
    chosen = settings or RunSettings(adopt=is_adopted(script))
    work = _Work(
        script, list(args), chosen, fleet or Fleet(pool=blueprint, tls=pool.tls), seconds, say,
        job_key(script, args, plain_settings(chosen)), kinds,
    )  # fmt: skip
    if quick:
        source = next((m for m in (*machines, *pool.machines) if m.is_here), None)
        source = source or this_machine().machines[0]
        found = work.measured([source], fresh=fresh)[0]
        own = _only(found)
        costs = {m.name: own if m is source else kinds.scaled(own, source, m) for m in machines}
        return msgspec.structs.replace(found, costs=costs)
    groups = kinds.groups(machines)
    profiles = work.measured([group[0] for group in groups], fresh=fresh)
    shared = {m.name: _only(p) for group, p in zip(groups, profiles, strict=True) for m in group}
    return msgspec.structs.replace(profiles[0], costs={m.name: shared[m.name] for m in machines})


def _only(profile: JobProfile) -> MachineCosts:
    return next(iter(profile.costs.values()))


def plain_settings(chosen: RunSettings, wish: ProfileWish | None = None) -> RunSettings:
    """The settings of a run that only measures."""
    return msgspec.structs.replace(
        chosen, strategy="single", profile=wish, slow=None, rate=None, checkpoint_epochs=0,
        checkpoint_minutes=None, resume=None, private_weights=False, second_copy=False,
    )  # fmt: skip


@dataclass(frozen=True)
class _Work:
    script: Path
    arguments: list[str]
    chosen: RunSettings
    fleet: Fleet
    seconds: float
    say: Say
    key: str
    kinds: Kinds

    def measured(self, machines: Sequence[Machine], *, fresh: bool) -> list[JobProfile]:
        """One profile for each of them, as they are kept, or by runs."""
        names = [self.kinds.name(machine) for machine in machines]
        found = [None if fresh else read_kept(self.key, name, self.seconds) for name in names]
        missing = [i for i, profile in enumerate(found) if profile is None]
        if missing:
            with tempfile.TemporaryDirectory(prefix="phalanx-profile-") as folder:
                self._measure([machines[i] for i in missing], Path(folder))
                for i, profile in zip(missing, self._results(Path(folder)), strict=True):
                    found[i] = profile
                    keep(self.key, names[i], self.seconds, profile)
        return [profile for profile in found if profile is not None]

    def _measure(self, machines: Sequence[Machine], folder: Path) -> None:
        """Each in a folder named by its number. Emulated machines share the cores of one host, so
        that one comes after the other."""
        for number, machine in enumerate(machines):
            self.say(f"measuring a few steps on {machine.name}, {self.seconds:g} seconds")
            (folder / str(number)).mkdir()
        works = [
            _Measurement(self._job(machine), folder / str(number), self.say)
            for number, machine in enumerate(machines)
        ]
        if len(works) == 1 or any(machine.emulated for machine in machines):
            for work in works:
                work()
        else:
            side_by_side(works)

    def _results(self, folder: Path) -> list[JobProfile]:
        runs = sorted(folder.iterdir(), key=lambda place: int(place.name))
        found = [_read(RunPaths(next(place.iterdir()))) for place in runs]
        return [msgspec.structs.replace(each, key=self.key) for each in found if each is not None]

    def _job(self, machine: Machine) -> Job:
        data = self.chosen.data or (machine.data if machine.is_here else None)
        wish = ProfileWish(seconds=self.seconds)
        plan = make_plan(
            [machine], workers=None, strategy="single", selection=machine.name, batch=None
        )
        return Job(
            script=self.script,
            arguments=self.arguments,
            settings=msgspec.structs.replace(plain_settings(self.chosen, wish), data=data),
            plan=plan,
            launcher="local" if machine.is_here else "ssh",
            command=sys.argv,
            fleet=_fleet_of(self.fleet, machine),
        )


def _fleet_of(fleet: Fleet, machine: Machine) -> Fleet:
    from dataclasses import replace

    return replace(fleet, machines=(machine,), detach=False, workers=None)


@dataclass(frozen=True)
class _Measurement:
    """One run, in a folder of its own below ``place``."""

    job: Job
    place: Path
    say: Say

    def __call__(self) -> None:
        name = f"profile-{slug(self.job.script.stem)[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
        paths = RunPaths(self.place / name).make()
        outcome = execute(self.job, paths, _Listener(self.say))
        if outcome.summary.status == "stopped":
            raise RunStopped
        if _read(paths) is not None:
            return
        error, script = outcome.error, str(self.job.script)
        if error is None or error.cause == never_joined(script).cause:
            raise InputError(
                "the script ended without a step",
                "A profile measures steps of training: give it the arguments with which it trains.",
            )
        cause = error.cause.replace(f" (log: {paths.log_of(0)})", "")
        raise type(error)(cause, error.remedy)


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


def _read(paths: RunPaths) -> JobProfile | None:
    try:
        return msgspec.json.decode(read_bounded(paths.profile), type=JobProfile)
    except (OSError, msgspec.MsgspecError, PhalanxError):
        return None
