"""Describes a cluster's workers before their nodes are known, and what the nodes report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phalanx.core import hosts_settings as hosts
from phalanx.core import settings
from phalanx.core.errors import InputError
from phalanx.core.files import read_bounded, write_whole
from phalanx.core.run_folder.run_key import KEY_VARIABLE, RunKey
from phalanx.core.run_folder.run_paths import RunPaths, slug
from phalanx.core.run_folder.trust import write_launch
from phalanx.launch.cluster.node import LOOPBACK
from phalanx.launch.launcher import (
    Job,
    Launch,
    Launcher,
    WorkerCommand,
    with_own_threads,
    worker_command,
)
from phalanx.observe.machines.monitor import Monitor
from phalanx.plan.plan import Plan, PlannedMachine, Slot

_Record = TypeVar("_Record")
_LARGEST_NOTE = 1 << 16
_AS_NODE = "0"
"""The number of threads if the user's environment says nothing: the node decides."""


class SeatNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note on one worker, written by the process that starts it on its node."""

    rank: int
    attempt: int
    node: str
    address: str
    cores: int
    threads: int
    device: str
    pid: int | None = None
    code: int | None = None


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """The address, port and other facts that the node of rank 0 decides for all workers."""

    address: str
    port: int
    ahead: float
    """Seconds that this node's monotonic clock is ahead of the wall clock, which nodes share."""
    resume: str | None = None
    """The checkpoint from which a restarted job continues."""
    tls: bool = False
    """Whether the workers' connections are encrypted."""


def cluster_folder(paths: RunPaths) -> Path:
    return paths.folder / "cluster"


def key_file(paths: RunPaths) -> Path:
    return cluster_folder(paths) / "run.key"


def note_file(paths: RunPaths, rank: int) -> Path:
    return cluster_folder(paths) / f"rank-{rank}.json"


def read_note(paths: RunPaths, rank: int) -> SeatNote | None:
    return _read(note_file(paths, rank), SeatNote)


def write_note(paths: RunPaths, note: SeatNote) -> None:
    write_whole(note_file(paths, note.rank), msgspec.json.encode(note))


def meeting_file(paths: RunPaths, attempt: int) -> Path:
    return cluster_folder(paths) / f"meeting-{attempt}.json"


def read_meeting(paths: RunPaths, attempt: int) -> Meeting | None:
    return _read(meeting_file(paths, attempt), Meeting)


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    """Read a record; return ``None`` if it is not there, or not complete yet."""
    try:
        return msgspec.json.decode(read_bounded(path, _LARGEST_NOTE), type=kind)
    except (OSError, InputError, msgspec.MsgspecError):
        return None


def before(paths: RunPaths, attempt: int) -> RunPaths:
    """Return the folder for files from before a restart of the job: a run from which this one
    continues. It is hidden, so that it is never the newest."""
    return RunPaths(paths.folder.with_name(f".{paths.id}-before-{attempt}"))


def write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read, in a folder that only this user can read."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def on_cluster(job: Job, kind: str, workers: int) -> Job:
    """Return the job with one machine that stands for the nodes, which the cluster will choose."""
    if job.framework is not None:
        raise InputError(
            f"--launcher {kind} cannot run another framework's script",
            "Leave out --framework, or use --launcher local or ssh.",
        )
    if job.fleet.pool is not None:
        raise InputError(f"--launcher {kind} has no use for a pool", "Leave out --pool.")
    slots = [Slot(rank=rank, cpus=[], threads=1, device="cpu") for rank in range(workers)]
    machine = PlannedMachine(name=kind, host=kind, cores=None, gpus=0, slots=slots)
    plural = "s" if workers != 1 else ""
    plan = msgspec.structs.replace(
        job.plan, machines=[machine], workers=workers, selection="all",
        reasons=[f"{workers} worker{plural}; {kind} chooses the nodes"],
    )  # fmt: skip
    return replace(job, plan=plan)


def commands(job: Job, paths: RunPaths) -> list[WorkerCommand]:
    """Return the workers' commands by rank, without what only the node knows."""
    found = []
    for machine, planned in job.plan.seats:
        unsaid = msgspec.structs.replace(planned, threads=int(_AS_NODE))
        slot = with_own_threads(unsaid, os.environ)
        found.append(worker_command(job, str(paths.folder.absolute()), machine, slot))
    return found


def mates_of(note: SeatNote, notes: Sequence[SeatNote]) -> list[int]:
    """Return the ranks on the node of ``note``."""
    return [other.rank for other in notes if other.node == note.node]


def seated(
    worker: WorkerCommand, notes: Sequence[SeatNote], meeting: Meeting, key: Mapping[str, str]
) -> WorkerCommand:
    """Return the worker with the environment variables that depend on the nodes."""
    note = notes[worker.rank]
    env = {**worker.env, settings.MACHINE: note.node, settings.DEVICE: note.device}
    for name in settings.THREADS:
        if env.get(name) == _AS_NODE:
            env[name] = str(note.threads)
    if meeting.resume is not None:
        chosen = settings.RunSettings.from_json(env[settings.SETTINGS])
        env[settings.SETTINGS] = msgspec.structs.replace(chosen, resume=meeting.resume).to_json()
    if len(notes) > 1:
        env |= {
            hosts.MEET: hosts.endpoint(meeting.address, meeting.port),
            hosts.ADDRESS: note.address,
            hosts.MEMBERS: ",".join(dict.fromkeys(other.address for other in notes)),
            **({hosts.TLS: "1"} if meeting.tls else {}),
            **key,
        }
    return msgspec.structs.replace(worker, env=env)


def write_down_nodes(
    launch: Launch, plan: Plan, paths: RunPaths, notes: Sequence[SeatNote], resume: str | None
) -> None:
    """Write the plan and the launch again, with the nodes (by rank) of the workers."""
    if resume is not None:
        source = before(paths, notes[0].attempt).id
        launch = msgspec.structs.replace(
            launch,
            settings=msgspec.structs.replace(launch.settings, resume=resume),
            resumes=f"{source}, checkpoint {int(Path(resume).name)}",
        )
    nodes: dict[str, list[SeatNote]] = {}
    for note in notes:
        nodes.setdefault(note.node, []).append(note)
    machines = [
        PlannedMachine(
            name=name,
            host=name,
            cores=mine[0].cores,
            gpus=len({note.device for note in mine if note.device != "cpu"}),
            slots=[Slot(rank=n.rank, cpus=[], threads=n.threads, device=n.device) for n in mine],
        )
        for name, mine in nodes.items()
    ]
    workers = [
        msgspec.structs.replace(worker, machine=note.node, threads=note.threads)
        for worker, note in zip(launch.workers, notes, strict=True)
    ]
    write_whole(paths.plan, msgspec.structs.replace(plan, machines=machines).to_json() + "\n")
    write_launch(paths, msgspec.structs.replace(launch, workers=workers).to_json() + "\n")


def settled(notes: list[SeatNote]) -> list[SeatNote]:
    """Complete the notes: a worker without a number of threads gets its share of the cores."""
    alone = len({note.node for note in notes}) == 1
    found = []
    for rank, said in enumerate(notes):
        # A node's own name becomes part of names of files here.
        note = msgspec.structs.replace(said, rank=rank, node=slug(said.node))
        threads = note.threads or max(1, note.cores // len(mates_of(note, notes)))
        # On one machine nothing listens where others could connect.
        address = LOOPBACK if alone else note.address
        found.append(msgspec.structs.replace(note, threads=threads, address=address))
    return found


def seat_orders(
    launch: Launch, paths: RunPaths, meeting: Meeting, notes: Sequence[SeatNote], shared: list[bool]
) -> list[tuple[Any, ...]]:
    """Return the arguments of each seat's ``start``. ``shared``: does it see the run's folder?"""
    key, script = {KEY_VARIABLE: RunKey.new().text()}, Path(launch.script).name
    files = [path for path in paths.source.rglob("*") if path.is_file()]
    project = {path.relative_to(paths.source).as_posix(): path.read_bytes() for path in files}
    found: list[tuple[Any, ...]] = []
    for note, here in zip(notes, shared, strict=True):
        worker = seated(launch.workers[note.rank], notes, meeting, key)
        if not here:
            argv = [script if word == launch.script else word for word in worker.argv]
            worker = msgspec.structs.replace(worker, argv=argv)
        ahead = meeting.ahead if mates_of(note, notes)[0] == note.rank else None
        found.append((msgspec.json.encode(worker), str(Path.cwd()), {} if here else project, ahead))
    return found


class SeatLost(Exception):  # noqa: N818  (what happened, not what went wrong here)
    """A seat does not answer any more, or the cluster cannot make it."""


class ClusterLauncher(Launcher):
    """The base of launchers whose nodes record their use of machines in the run's folder."""

    def __init__(self) -> None:
        self._news: list[str] = []

    def news(self) -> list[str]:
        taken = self._news[:]
        self._news.clear()  # the same list, because other code appends to it
        return taken

    def monitors(self, launch: Launch, paths: RunPaths) -> list[Monitor]:
        return []  # nodes watch themselves
