"""What a worker on another machine is given: command, working folder, variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from phalanx.core import hosts_settings as hosts
from phalanx.core import settings
from phalanx.core.hosts_settings import endpoint
from phalanx.core.run_folder.run_key import KEY_VARIABLE, RunKey
from phalanx.launch.frameworks.framework import SERVER
from phalanx.launch.launcher import (
    Job,
    WorkerCommand,
    process_variables,
    worker_variables,
)
from phalanx.launch.machines.shipment import RemoteLayout
from phalanx.plan.plan import PlannedMachine, Slot


@dataclass(frozen=True)
class MeetingPoint:
    """How the workers of all machines find and know each other."""

    address: str
    """Of the machine of rank 0."""
    port: int
    key: RunKey
    tls: bool
    links: Mapping[str, float]
    """Bits per second of each machine's slowest link, where measured."""
    members: Sequence[str] = ()
    """Addresses of all machines."""


def command_of(
    job: Job, root: Path, machine: PlannedMachine, slot: Slot, seat: RemoteLayout
) -> WorkerCommand:
    """The worker of ``slot``, without what only the start knows (the key, where to meet)."""
    script = PurePosixPath(seat.project) / job.script.resolve().relative_to(root).as_posix()
    bootstrap = [seat.python, "-P", "-m", "phalanx.launch.worker.bootstrap"]
    chosen = msgspec.structs.replace(job.settings, data=seat.data)  # not where this machine has it
    if seat.checkpoint is not None:
        chosen = msgspec.structs.replace(chosen, resume=seat.checkpoint)
    found = {
        **worker_variables(replace(job, settings=chosen), seat.run_folder, machine, slot),
        **process_variables(job, slot),
        "PYTHONPATH": seat.code,
    }
    if seat.data is not None:
        found[settings.DATA] = seat.data
    serves = slot.rank >= job.plan.workers
    server = [seat.python, "-P", "-m", "phalanx.train.start.joining_hosts"]
    return WorkerCommand(
        rank=slot.rank,
        machine=machine.name,
        argv=server if serves else [*bootstrap, str(script), *job.arguments],
        env=found,
        cpus=list(slot.cpus),
        threads=slot.threads,
        log=f"logs/rank-{slot.rank}.log",
        role=SERVER if serves else "",
    )


def working_folder(root: Path, seat: RemoteLayout) -> str:
    """That of the command, if it is inside the project; else the project's root."""
    here = Path.cwd().resolve()
    inside = here == root or root in here.parents
    part = here.relative_to(root).as_posix() if inside else "."
    return os.path.normpath(f"{seat.project}/{part}")


def meeting_variables(
    meeting: MeetingPoint, address: str, machine: PlannedMachine, slot: Slot
) -> dict[str, str]:
    """What connects the worker of ``slot`` to the others; it holds the key, so is not kept."""
    found = {
        hosts.MEET: endpoint(meeting.address, meeting.port),
        hosts.ADDRESS: address,
        hosts.MEMBERS: ",".join(meeting.members),
        hosts.LOCAL: str(machine.slots.index(slot)),
        hosts.LOCALS: str(len(machine.slots)),
        KEY_VARIABLE: meeting.key.text(),
    }
    if meeting.tls:
        found[hosts.TLS] = "1"
    if meeting.links:
        found[hosts.LINKS] = json.dumps(dict(meeting.links))
    return found
