"""What is started on every machine of a run: our own workers, or another framework's processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from phalanx.core.run_folder.run_key import RunKey
from phalanx.launch.frameworks import Framework, places_of
from phalanx.launch.frameworks.commands import Ground, commands_of
from phalanx.launch.launchers.launcher import Job, WorkerCommand
from phalanx.launch.launchers.remote_worker import (
    MeetingPoint,
    command_of,
    dataset_variables,
    meeting_variables,
    working_folder,
)
from phalanx.launch.machines.machine_session import MachineSession
from phalanx.plan.plan import PlannedMachine
from phalanx.pool.measured import read_probe, slowest_links


@dataclass(frozen=True)
class LaunchOrders:
    """Commands as they may be written down, and what goes to their processes alone."""

    commands: list[WorkerCommand]
    secrets: dict[int, dict[str, str]] = field(default_factory=dict)

    def of(self, member: MachineSession, root: Path) -> list[dict[str, Any]]:
        """For one machine's agent."""
        return [
            {
                "rank": command.rank,
                "argv": command.argv,
                "env": {**command.env, **self.secrets.get(command.rank, {})},
                "cwd": working_folder(root, member.seat),
                "log": command.log,
            }
            for command in self.commands
            if command.machine == member.name
        ]


async def orders_for(
    job: Job, root: Path, members: Sequence[MachineSession], key: RunKey
) -> LaunchOrders:
    if job.framework is not None:
        return await _foreign(job, job.framework, root, members)
    by_name = {member.name: member for member in members}
    commands = [
        command_of(job, root, machine, slot, by_name[machine.name].seat)
        for machine, slot in job.plan.seats
    ]
    if job.plan.workers == 1:
        return LaunchOrders(commands)
    meeting = await _meeting(job, members, key)
    secrets = {
        slot.rank: meeting_variables(meeting, by_name[machine.name].address, machine, slot)
        for machine, slot in job.plan.seats
    }
    return LaunchOrders(commands, secrets)


async def _meeting(job: Job, members: Sequence[MachineSession], key: RunKey) -> MeetingPoint:
    first, addresses = members[0], [member.address for member in members]
    probe = read_probe(job.fleet.pool) if job.fleet.pool is not None else None
    links = slowest_links(probe) if probe else {}
    port = (await first.free_ports(1))[0]
    return MeetingPoint(first.address, port, key, job.fleet.tls, links, addresses)


async def _foreign(
    job: Job, framework: Framework, root: Path, members: Sequence[MachineSession]
) -> LaunchOrders:
    ports: dict[int, int] = {}
    for member in members:
        ranks = [slot.rank for slot in _planned(job, member).slots]
        ports.update(zip(ranks, await member.free_ports(len(ranks)), strict=True))
    places = places_of(
        job.plan,
        framework,
        job.script.stem,
        {member.name: member.address for member in members},
        ports,
        {member.name: member.interface for member in members},
    )
    script = job.script.resolve().relative_to(root).as_posix()
    grounds = {
        member.name: Ground(
            python=member.seat.python,
            script=str(PurePosixPath(member.seat.project) / script),
            run_folder=member.seat.run_folder,
            data=member.seat.data or member.seat.datasets,
            variables=dataset_variables(member.seat),
            before=(
                member.seat.python,
                "-I",
                "-S",
                f"{member.seat.code}/phalanx/launch/worker/process_binding.py",
            ),
        )
        for member in members
    }
    return LaunchOrders(commands_of(job, framework, places, grounds))


def _planned(job: Job, member: MachineSession) -> PlannedMachine:
    return next(machine for machine in job.plan.machines if machine.name == member.name)
