"""What is started on every machine of a run: our own workers, or another framework's processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from phalanx.core import hosts_settings as hosts
from phalanx.core import settings
from phalanx.core.run_folder.run_key import RunKey
from phalanx.launch.frameworks import Framework, places_of
from phalanx.launch.launcher import Job, WorkerCommand
from phalanx.launch.launchers.foreign_commands import MachineContext, commands_of
from phalanx.launch.launchers.remote_worker import (
    MeetingPoint,
    command_of,
    meeting_variables,
    working_folder,
)
from phalanx.launch.link.agent_frames import Ports
from phalanx.launch.machines.machine_session import ANSWER_SECONDS, MachineSession
from phalanx.launch.shipping.send import answers_wrongly, read_answer
from phalanx.launch.shipping.uploads import code_root
from phalanx.launch.worker import keras_figures, process_binding
from phalanx.plan.plan import PlannedMachine
from phalanx.pool.measured import link_rates, read_probe


async def commands_for(
    job: Job, root: Path, members: Sequence[MachineSession]
) -> list[WorkerCommand]:
    """As they are written down, and started."""
    if job.framework is not None:
        return await _foreign(job, job.framework, root, members)
    seats = {member.name: member.seat for member in members}
    return [
        command_of(job, root, machine, slot, seats[machine.name])
        for machine, slot in job.plan.seats
    ]


async def secrets_for(
    job: Job, members: Sequence[MachineSession], key: RunKey
) -> dict[int, dict[str, str]]:
    """By rank: what only the start knows (clocks, where to meet, the key); never written down."""
    if job.framework is not None:
        return {}
    by_name = {member.name: member for member in members}
    meeting = await _meeting(job, members, key) if job.plan.workers > 1 else None
    found: dict[int, dict[str, str]] = {}
    for machine, slot in job.plan.seats:
        member = by_name[machine.name]
        found[slot.rank] = {settings.SKEW: repr(member.skew)} if member.skew else {}
        if meeting is not None:
            found[slot.rank] |= meeting_variables(meeting, member.address, machine, slot)
            found[slot.rank][hosts.PROCESSES] = str(len(job.plan.seats))
    return found


def start_request(
    commands: Sequence[WorkerCommand],
    secrets: Mapping[int, Mapping[str, str]],
    session: MachineSession,
    root: Path,
) -> list[dict[str, Any]]:
    """What the agent of one machine is asked to start."""
    return [
        {
            "rank": command.rank,
            "argv": command.argv,
            "env": {**command.env, **secrets.get(command.rank, {})},
            "cwd": working_folder(root, session.seat),
            "log": command.log,
        }
        for command in commands
        if command.machine == session.name
    ]


async def _meeting(job: Job, members: Sequence[MachineSession], key: RunKey) -> MeetingPoint:
    first, addresses = members[0], [member.address for member in members]
    probe = read_probe(job.fleet.pool) if job.fleet.pool is not None else None
    links = link_rates(probe) if probe else {}
    port = (await _free_ports(first, 1))[0]
    return MeetingPoint(first.address, port, key, job.fleet.tls, links, addresses)


async def _foreign(
    job: Job, framework: Framework, root: Path, members: Sequence[MachineSession]
) -> list[WorkerCommand]:
    ports: dict[int, int] = {}
    for member in members:
        ranks = [slot.rank for slot in _planned(job, member).slots]
        ports.update(zip(ranks, await _free_ports(member, len(ranks)), strict=True))
    places = places_of(
        job.plan,
        framework,
        job.script.stem,
        {member.name: member.address for member in members},
        ports,
        {member.name: member.interface for member in members},
    )
    script = job.script.resolve().relative_to(root).as_posix()
    binding = Path(process_binding.__file__).resolve().relative_to(code_root()).as_posix()
    figures = Path(keras_figures.__file__).resolve().relative_to(code_root()).as_posix()
    contexts = {
        member.name: MachineContext(
            python=member.seat.python,
            script=str(PurePosixPath(member.seat.project) / script),
            run_folder=member.seat.run_folder,
            data=member.seat.data,
            before=(member.seat.python, "-I", "-S", f"{member.seat.code}/{binding}"),
            figures=f"{member.seat.code}/{figures}",
        )
        for member in members
    }
    return commands_of(job, framework, places, contexts)


def _planned(job: Job, member: MachineSession) -> PlannedMachine:
    return next(machine for machine in job.plan.machines if machine.name == member.name)


async def _free_ports(session: MachineSession, count: int) -> list[int]:
    link = session.link
    answer = await link.ask(
        "free_ports", address=session.address, count=count, timeout=ANSWER_SECONDS
    )
    ports = read_answer(link, answer, Ports).ports
    if len(ports) != count:
        raise answers_wrongly(link)
    return ports
