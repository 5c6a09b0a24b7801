"""The commands for every machine of a run: our own workers, or another framework's processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from phalanx.core import hosts_settings as hosts
from phalanx.core import settings
from phalanx.core.hosts_settings import endpoint
from phalanx.core.run_folder.run_key import KEY_VARIABLE, RunKey
from phalanx.launch.frameworks.framework import SERVER, Framework
from phalanx.launch.frameworks.seating import places_of
from phalanx.launch.launcher import Job, WorkerCommand, worker_command
from phalanx.launch.launchers.foreign_commands import MachineContext, commands_of
from phalanx.launch.link.agent_frames import Ports
from phalanx.launch.machines.machine_session import ANSWER_SECONDS, MachineSession
from phalanx.launch.machines.shipment import RemoteLayout
from phalanx.launch.shipping.send import answers_wrongly, read_answer
from phalanx.launch.shipping.uploads import code_root
from phalanx.launch.worker import keras_figures, process_binding
from phalanx.plan.plan import PlannedMachine, Slot
from phalanx.pool.measured import link_rates, read_probe


async def commands_for(
    job: Job, root: Path, members: Sequence[MachineSession]
) -> list[WorkerCommand]:
    """Return the commands of all workers, for ``launch.json`` and for the start."""
    if job.framework is not None:
        return await _foreign(job, job.framework, root, members)
    layouts = {member.name: member.layout for member in members}
    return [
        command_of(job, root, machine, slot, layouts[machine.name])
        for machine, slot in job.plan.seats
    ]


async def secrets_for(
    job: Job, members: Sequence[MachineSession], key: RunKey
) -> dict[int, dict[str, str]]:
    """Return, by rank, variables first known at the start and never stored (clock, place, key)."""
    if job.framework is not None:
        return {}
    by_name = {member.name: member for member in members}
    meeting = await _meeting(job, members, key) if job.plan.workers > 1 else None
    found: dict[int, dict[str, str]] = {}
    for machine, slot in job.plan.seats:
        member = by_name[machine.name]
        found[slot.rank] = {settings.SKEW: repr(member.skew)} if member.skew else {}
        if meeting is not None:
            found[slot.rank] |= {**meeting, hosts.ADDRESS: member.address}
    return found


def start_request(
    commands: Sequence[WorkerCommand],
    secrets: Mapping[int, Mapping[str, str]],
    session: MachineSession,
    root: Path,
) -> list[dict[str, Any]]:
    """Return the workers that the agent of one machine is asked to start."""
    return [
        {
            "rank": command.rank,
            "argv": command.argv,
            "env": {**command.env, **secrets.get(command.rank, {})},
            "cwd": working_folder(root, session.layout),
            "log": command.log,
        }
        for command in commands
        if command.machine == session.name
    ]


async def _meeting(job: Job, members: Sequence[MachineSession], key: RunKey) -> dict[str, str]:
    """Return the variables by which the workers of all machines connect to each other."""
    first = members[0]
    probe = read_probe(job.fleet.pool) if job.fleet.pool is not None else None
    links = link_rates(probe) if probe else {}
    return {
        hosts.MEET: endpoint(first.address, (await _free_ports(first, 1))[0]),
        hosts.MEMBERS: ",".join(member.address for member in members),
        hosts.PROCESSES: str(len(job.plan.seats)),
        KEY_VARIABLE: key.text(),
        **({hosts.TLS: "1"} if job.fleet.tls else {}),
        **({hosts.LINKS: json.dumps(links)} if links else {}),
    }


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
            python=member.layout.python,
            script=str(PurePosixPath(member.layout.project) / script),
            run_folder=member.layout.run_folder,
            data=member.layout.data,
            before=(member.layout.python, "-I", "-S", f"{member.layout.code}/{binding}"),
            figures=f"{member.layout.code}/{figures}",
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


def command_of(
    job: Job, root: Path, machine: PlannedMachine, slot: Slot, layout: RemoteLayout
) -> WorkerCommand:
    """Return the command of the worker in ``slot``, without the variables of ``secrets_for``."""
    script = PurePosixPath(layout.project) / job.script.resolve().relative_to(root).as_posix()
    settings_there = msgspec.structs.replace(
        job.settings, data=layout.data, resume=layout.checkpoint or job.settings.resume
    )  # their places on that machine, not on this one
    found = worker_command(
        replace(job, settings=settings_there),
        layout.run_folder,
        machine,
        slot,
        python=layout.python,
        script=str(script),
    )
    more = {"PYTHONPATH": layout.code, **({settings.DATA: layout.data} if layout.data else {})}
    found = msgspec.structs.replace(found, env={**found.env, **more})
    if slot.rank < job.plan.workers:
        return found
    server = [layout.python, "-P", "-m", "phalanx.train.start.joining_hosts"]
    return msgspec.structs.replace(found, argv=server, role=SERVER)


def working_folder(root: Path, layout: RemoteLayout) -> str:
    """Return the remote copy of the current folder if the project has it, else of its root."""
    here = Path.cwd().resolve()
    inside = here == root or root in here.parents
    part = here.relative_to(root).as_posix() if inside else "."
    return os.path.normpath(f"{layout.project}/{part}")
