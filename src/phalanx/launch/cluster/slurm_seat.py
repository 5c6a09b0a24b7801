"""``srun python -m phalanx.launch.cluster.slurm_seat RUN_FOLDER``: one worker of the job.

The nodes share the run's folder: in it, workers agree where to meet, and each records how it ended.
A job that Slurm starts again goes on from the newest checkpoint of the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from phalanx.core.errors import InputError, MachineError, PhalanxError
from phalanx.core.files import read_bounded, write_whole
from phalanx.core.registry import Registry
from phalanx.core.run_folder.run_key import KEY_FILE_VARIABLE
from phalanx.core.run_folder.run_paths import RunPaths, slug
from phalanx.launch.cluster import node, seats
from phalanx.launch.launcher import STOP_SECONDS, Launch
from phalanx.observe.machines.monitor import Monitor
from phalanx.observe.summary.summary import summarise

CHECKPOINTS = Registry(
    "checkpoint", {"newest": "phalanx.train.checkpoint.checkpoint_index:newest_valid"}
)
_MEET_SECONDS = 300.0
"""Seconds to wait: nodes may start a job at different moments, and see files some seconds late."""
_TICK = 0.1
_Found = TypeVar("_Found")


def main() -> int:
    paths = RunPaths(Path(sys.argv[1]))
    launch = Launch.from_json(read_bounded(paths.launch))
    seat = _Seat(paths, launch)
    try:
        return seat.run()
    except PhalanxError as error:
        # Written like a worker's own error, so that the controller reports it like any other.
        write_whole(paths.traceback_of(seat.note.rank), f"{error}\n")
        seat.say(code=error.exit_code)
        return error.exit_code


class _Seat:
    def __init__(self, paths: RunPaths, launch: Launch) -> None:
        self._paths, self._launch = paths, launch
        self._terminated: float | None = None
        # Slurm signals every process of the job, the worker included: here it is only noted.
        signal.signal(signal.SIGTERM, self._note_end)
        name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        self._local = int(os.environ["SLURM_LOCALID"])
        self.note = seats.SeatNote(
            rank=int(os.environ["SLURM_PROCID"]),
            attempt=_count("SLURM_RESTART_COUNT", 0),
            node=slug(name),
            address=node.own_address(name, alone=_count("SLURM_STEP_NUM_NODES", 1) == 1),
            cores=_count("SLURM_CPUS_ON_NODE", os.cpu_count() or 1),
            threads=_count("SLURM_CPUS_PER_TASK", 1),
            device=_device(self._local),
        )

    def say(self, **changes: int) -> None:
        self.note = msgspec.structs.replace(self.note, **changes)
        with suppress(OSError):  # the disk is full; the job's own state says roughly the same
            seats.write_note(self._paths, self.note)

    def run(self) -> int:
        rank = self.note.rank
        self._put_aside(rank)
        self.say()
        if rank == 0:
            self._settle()
        attempt = self.note.attempt
        meeting = self._await(
            lambda: seats.read_meeting(self._paths, attempt), "worker 0 did not say where to meet"
        )
        notes = self._await_all()
        mates = seats.mates_of(self.note, notes)
        key = {KEY_FILE_VARIABLE: str(seats.key_file(self._paths))}
        worker = seats.seated(self._launch.workers[rank], notes, meeting, key)
        # In our own group, so that Slurm's signals reach it however Slurm finds processes.
        process = node.start_worker(worker, self._paths, cwd=None, apart=False)
        self.say(pid=process.pid)
        monitor = Monitor(
            self.note.node,
            self._paths.machine(self.note.node),
            lambda: self._pids(mates),
            meeting.ahead - node.clock_ahead(),
        )
        if rank == mates[0]:
            monitor.start()
        code = self._wait(process)
        monitor.stop()
        self.say(code=code)
        return code if code >= 0 else 128 - code

    def _settle(self) -> None:
        """As rank 0, wait for all others, and decide what all workers have to agree on."""
        resume = self._newest() if self.note.attempt else None
        self._await_all()
        if self.note.attempt:
            past = seats.before(self._paths, self.note.attempt)
            write_whole(past.summary, summarise(past, status="stopped").to_json() + "\n")
        meeting = seats.Meeting(
            address=self.note.address,
            port=node.port_of(self.note.address),
            ahead=node.clock_ahead(),
            resume=resume,
        )
        write_whole(
            seats.meeting_file(self._paths, self.note.attempt), msgspec.json.encode(meeting)
        )

    def _newest(self) -> str | None:
        try:
            return str(CHECKPOINTS.get("newest")(self._paths.checkpoints)[0].resolve())
        except InputError:
            return None  # then it begins where it began the first time

    def _put_aside(self, rank: int) -> None:
        """Move files from before a restart of the job into another run, because their clocks
        differ. The controller writes new records only when all workers are there."""
        self._paths.traceback_of(rank).unlink(missing_ok=True)
        if not self.note.attempt:
            return
        past = seats.before(self._paths, self.note.attempt).make()
        moved = [self._paths.events_of(rank)]
        if rank == 0:
            moved += self._paths.machines.glob("*.jsonl")
            for name in (self._paths.plan.name, self._paths.launch.name):
                write_whole(past.folder / name, read_bounded(self._paths.folder / name))
        for file in moved:
            if file.exists():
                file.rename(past.folder / file.relative_to(self._paths.folder))

    def _await_all(self) -> list[seats.SeatNote]:
        """Wait for the notes of all ranks. Nodes see each other's files some seconds late."""
        ranks = [worker.rank for worker in self._launch.workers]

        def all_notes() -> list[seats.SeatNote] | None:
            notes = [note for rank in ranks if (note := self._note_of(rank))]
            return notes if len(notes) == len(ranks) else None

        return self._await(all_notes, "some workers were never started")

    def _note_of(self, rank: int) -> seats.SeatNote | None:
        note = seats.read_note(self._paths, rank)
        return note if note is not None and note.attempt == self.note.attempt else None

    def _pids(self, ranks: list[int]) -> list[int]:
        notes = (self._note_of(rank) for rank in ranks)
        return [note.pid for note in notes if note and note.pid and note.code is None]

    def _await(self, ready: Callable[[], _Found | None], never: str) -> _Found:
        deadline = time.monotonic() + _MEET_SECONDS
        while (found := ready()) is None:
            if time.monotonic() > deadline:
                raise MachineError(f"{never} (within {_MEET_SECONDS:.0f} s)", "See logs/slurm.log.")
            if self._terminated is not None:
                raise MachineError("the job was ended before its workers met", "Start it again.")
            time.sleep(_TICK)
        return found

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while (code := process.poll()) is None:
            late = self._terminated is not None and time.monotonic() - self._terminated
            if late and late > STOP_SECONDS:
                process.kill()
            time.sleep(_TICK)
        return code

    def _note_end(self, *_: object) -> None:
        self._terminated = self._terminated or time.monotonic()


def _count(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def _device(local: int) -> str:
    """Return one of the GPUs of the job; a GPU bound to the task is its only one."""
    if not {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"} & os.environ.keys():
        return "cpu"
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return f"cuda:{local % len(gpus)}" if gpus else "cpu"


if __name__ == "__main__":
    sys.exit(main())
