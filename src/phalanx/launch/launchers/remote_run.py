"""One run on several machines: connect, look, equip, start, watch, fetch results, clean up.

Everything here runs on one event loop. The controller reads exit codes, news and errors from
another thread, so these are only added to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from phalanx.core.errors import InputError, MachineError, PhalanxError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import Job, Launch, WorkerCommand
from phalanx.launch.launchers.remote_commands import commands_for, secrets_for, start_request
from phalanx.launch.link.agent_loss import ConnectionLost
from phalanx.launch.link.problems import all_of, first_failure
from phalanx.launch.link.progress_notes import telling
from phalanx.launch.machines.addresses import own_address
from phalanx.launch.machines.machine_session import MachineSession
from phalanx.launch.machines.reconnect import Absences, Unreached
from phalanx.launch.machines.shipment import Equipment, pack_up
from phalanx.launch.run.hangs import STANDSTILL
from phalanx.launch.shipping.home.incoming import shown
from phalanx.launch.shipping.home.results import collect_results
from phalanx.launch.shipping.project import find_root
from phalanx.launch.shipping.versions import check_versions
from phalanx.pool.machine import Machine

CONNECT_SECONDS = 30.0
LAST_SECONDS = 5.0


class NothingLeft(MachineError):  # noqa: N818  (what was found)
    """No machine has anything of a detached run any more."""


class RemoteRun:
    """The machines of a run, from the first connection to the last file."""

    def __init__(
        self,
        run_id: str,
        machines: Sequence[Machine],
        *,
        detach: bool = False,
        attach: bool = False,
        dry: bool = False,
        reconnect: float = 0.0,
    ) -> None:
        self._id, self._attach = run_id, attach
        self.codes: dict[int, int] = {}
        self.lost: dict[int, MachineError] = {}
        self.news: deque[str] = deque()
        self.error: PhalanxError | None = None
        """Why the run cannot go on; ``None`` if it can."""
        self.started = False
        self._equipment: Equipment | None = None
        self._key = RunKey.new()
        self._ending = False
        self.absences = Absences(run_id, 0.0 if detach else reconnect, self.say)
        self.members = [
            MachineSession(
                machine, run_id, self, detach=detach, attach=attach, dry=dry, hold=reconnect
            )
            for machine in machines
        ]

    # -- before the start --------------------------------------------------------------------

    async def connect(self) -> list[Machine]:
        """Log in to all machines at once; return them with the resources that were found."""
        if self._attach:
            silent = await self.connect_some()
            for member in self.members:
                if (why := silent.get(member.name)) is not None:
                    member.gone = MachineError(why, "Check whether it is up.")
        else:
            await all_of({member.name: self._connect(member) for member in self.members})
        there = [member for member in self.members if member.gone is None]
        if not there:
            names = ", ".join(member.name for member in self.members)
            raise NothingLeft(
                f"this run no longer exists on {names}: it has ended, or its machines were "
                f"restarted",
                f"Continue from its newest checkpoint: phalanx resume {self._id}",
            )
        _refuse_twice(there)
        # Other machines reach this one at the address from which its connections come.
        own = own_address([member.link.reached_from for member in self.members if member.alive])
        for member in self.members:
            self.news.extend(member.remarks)
            member.own_address = own or "127.0.0.1"
        return [member.machine for member in self.members]

    async def connect_some(self) -> dict[str, str]:
        """Log in to the machines that can be reached; return the others, each with the reason."""
        works = [self._connect(member) for member in self.members]
        found = await asyncio.gather(*works, return_exceptions=True)
        silent: dict[str, str] = {}
        for member, error in zip(self.members, found, strict=True):
            if isinstance(error, PhalanxError):
                silent[member.name] = error.cause
            elif isinstance(error, BaseException):
                raise error
        return silent

    async def _connect(self, member: MachineSession) -> None:
        async with telling(self.news.append, lambda: f"waiting for {member.name}: connecting"):
            await member.connect(CONNECT_SECONDS)

    async def prepare(self, job: Job) -> list[WorkerCommand]:
        """Decide what to send to every machine, and return the commands; send nothing yet."""
        planned = {machine.name for machine in job.plan.machines}
        for member in [m for m in self.members if m.name not in planned]:  # without a worker
            await member.close()
            self.members.remove(member)
        equipment = self._equipment = await pack_up(job, self.say)
        await first_failure({member.name: member.settle(equipment) for member in self.members})
        return await commands_for(job, find_root(job.script), self.members)

    # -- start -------------------------------------------------------------------------------

    async def keep_error(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``launch`` or ``rejoin``; keep its exception as ``error``."""
        try:
            await work
        except PhalanxError as error:
            self.error = error
        except Exception as error:
            self.error = MachineError(f"cannot start the workers: {error!r}")

    async def launch(self, job: Job, paths: RunPaths, launch: Launch) -> None:
        """Send every machine what its workers need, and start the workers."""
        assert self._equipment is not None
        self._begin(job, paths)
        equipment, root = self._equipment, find_root(job.script)
        await first_failure({member.name: member.equip(equipment) for member in self.members})
        pythons = {m.name: m.python for m in self.members if m.python is not None}
        if job.framework is None:
            self.news.extend(check_versions(pythons, tls=job.fleet.tls))
        self._one_clock(job)
        secrets = await secrets_for(job, self.members, self._key)
        self.started = True
        asked = {m: start_request(launch.workers, secrets, m, root) for m in self.members}
        await first_failure({m.name: m.start(workers) for m, workers in asked.items()})

    def _begin(self, job: Job, paths: RunPaths) -> None:
        planned = {machine.name: machine for machine in job.plan.machines}
        for member in self.members:
            member.begin(paths, planned[member.name])

    def _one_clock(self, job: Job) -> None:
        """Put machines' figures on the events' clock: the first machine's, or ours."""
        ours = job.framework is not None or not self.members[0].alive
        first = 0.0 if ours else self.members[0].link.clock_offset
        for member in self.members:
            if member.alive and member.samples is not None:
                member.samples.clock_to_run = member.link.clock_offset - first

    # -- while it runs -----------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.news.append(text)

    def on_exit(self, rank: int, code: int) -> None:
        self.codes[rank] = code

    def on_gap(self, seconds: float) -> None:
        """Note that this computer slept; without workers here, the run may go on alone."""
        far = not any(member.machine.is_here for member in self.members)
        self.absences.slept(seconds, leave=self.started and far)

    def on_lost(self, session: MachineSession, error: MachineError) -> None:
        """Try to reconnect to a machine whose agent may still run; note the loss of any other."""
        if self._ending or self.absences.alone is not None:
            return
        back = isinstance(error, ConnectionLost) and bool(session.started_ranks)
        if back and self.started and self.absences.seconds:
            self.absences.wait_for(session, error, lambda error: self._lose(session, error))
        else:
            self._lose(session, error)

    def _lose(self, member: MachineSession, error: MachineError) -> None:
        """Note a lost machine; the workers of the others decide whether to go on without it."""
        self.lost.update({r: error for r in member.ranks if self.codes.get(r) != 0})
        left = [m for m in self.members if m.alive or m.name in self.absences.names]
        if not left and isinstance(error, Unreached):
            self.absences.give_up(error.cause)
        elif not self.started or not left:
            self.error = self.error or error
            return
        self.news.append(
            f"{error.cause}; the others continue if they can, and the run ends when they have "
            f"made no step for {STANDSTILL:.0f} s, or for twice their longest pause so far"
        )

    async def rejoin(self, job: Job, paths: RunPaths) -> None:
        """Continue a run that another controller has left."""
        self._begin(job, paths)
        self.started = True
        self._one_clock(job)
        for member in self.members:
            if member.gone is not None:
                self.on_lost(member, member.gone)
        await all_of({m.name: m.rejoin() for m in self.members if m.gone is None})

    async def leave(self) -> None:
        """Disconnect from the agents, which go on with their workers."""
        self._ending = True
        await self.absences.end()
        await self._tell_all(lambda m: m.leave(), LAST_SECONDS)

    async def switch(self, request: str) -> None:
        """Send a request of ``phalanx switch`` to the first worker's machine."""
        await self._tell_all(lambda m: m.switch(request), LAST_SECONDS, self.members[:1])

    async def stop(self, grace: float) -> None:
        await self._tell_all(lambda m: m.stop(grace), grace + LAST_SECONDS)

    def say_unreachable(self) -> None:
        """Say that a run cannot be stopped, if no machine of it can be reached, and give it up."""
        if self.started and self.absences.names and not any(m.alive for m in self.members):
            self.absences.give_up("no machine can be reached; the run cannot be stopped")

    def all_ended(self) -> bool:
        ranks = [rank for m in self.members if m.alive for rank in m.started_ranks]
        return all(rank in self.codes for rank in ranks)

    # -- the end -----------------------------------------------------------------------------

    async def bring_home(self, paths: RunPaths) -> None:
        """Fetch the workers' files; if two have the same name, the first machine's keeps it."""
        members = [m for m in self.members if m.started_ranks]
        await asyncio.gather(*(m.checkpoints_home() for m in members))
        links = [m.link for m in members if m.alive]
        came = await collect_results(links, paths)
        self.news.extend(came.notes)

    def left_behind(self) -> list[str]:
        """Return lines that say where results are that were not fetched."""
        members = [m for m in self.members if m.alive and m.started_ranks]
        return [f"{m.name} still has its results, in {shown(m.run_folder)}" for m in members]

    async def clean(self) -> None:
        await self._tell_all(lambda m: m.clean(), 30.0)

    async def close(self) -> None:
        self._ending = True
        await self.absences.end()
        await self._tell_all(lambda m: m.close(), LAST_SECONDS)

    async def _tell_all(
        self,
        what: Callable[[MachineSession], Awaitable[None]],
        limit: float,
        members: Sequence[MachineSession] | None = None,
    ) -> None:
        """Call ``what`` for all machines at once, so that no silent one delays the others."""

        async def tell(member: MachineSession) -> None:
            try:
                async with asyncio.timeout(limit):
                    await what(member)
            except (PhalanxError, TimeoutError, OSError) as error:
                told = self._ending or not member.alive  # a loss is reported where it is noticed
                if not told and not isinstance(error, TimeoutError):
                    self.news.append(str(error).splitlines()[0])

        chosen = self.members if members is None else members
        await asyncio.gather(*(tell(member) for member in chosen))


def _refuse_twice(members: Sequence[MachineSession]) -> None:
    """Refuse two names of the same machine, which would wait for itself."""
    seen: dict[str, MachineSession] = {}
    for member in members:
        other = seen.setdefault(member.facts.machine_id, member)
        if other is not member:
            raise InputError(
                f"'{other.name}' and '{member.name}' are the same machine "
                f"({other.machine.endpoint}, {member.machine.endpoint})",
                "Remove one of them from the blueprint, or from --machines.",
            )
