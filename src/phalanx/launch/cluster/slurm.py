"""Starts workers as tasks of one Slurm job, which is written, submitted, followed, cancelled.

All that is known of the workers lies in the run's folder, which the nodes share. The job does not
depend on this process: if this process is killed, Slurm keeps the job.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError, MachineError, PhalanxError
from phalanx.core.files import read_tail
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.cluster import seats
from phalanx.launch.cluster.slurm_queue import JobState, SlurmJob, check_commands, submit
from phalanx.launch.launcher import Job, Launch, describe_launch, never
from phalanx.launch.run.interrupts import await_end
from phalanx.launch.run.patience import Patience
from phalanx.launch.worker.script_runner import PEER_LOST_CODE, STOPPED_CODE
from phalanx.plan.plan import Plan

_OFTEN, _SELDOM = 1.0, 10.0
"""Seconds between two questions to Slurm: while something changes, and while workers run."""
_READ = 0.2
_AFTER_CANCEL = 30.0
_PATIENCE = 10.0
"""Seconds to wait until the last files appear on a shared file system."""
_MOST_SAID = 1 << 16


class SlurmLauncher(seats.ClusterLauncher):
    """Submits one job for each run."""

    _plan: Plan
    _script: str
    _launch: Launch
    _paths: RunPaths

    def __init__(self) -> None:
        super().__init__()
        self._job: SlurmJob | None = None
        self._problem: PhalanxError | None = None
        self._shown, self._began = "", False
        self._notes: dict[int, seats.SeatNote] = {}
        self._read = 0.0
        self._seen = -1
        """The attempt whose nodes have been written down."""
        self._held = Patience(_PATIENCE)
        self._missing = Patience(_PATIENCE)

    def open(
        self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool], *, dry: bool = False
    ) -> Job:
        if not dry:
            check_commands()
        if job.fleet.workers is None:
            raise InputError("--launcher slurm needs the number of workers", "Add --workers N.")
        return seats.on_cluster(job, "slurm", job.plan.workers)

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        self._plan, self._script = job.plan, batch_script(job, paths)
        launch = describe_launch(job, paths, seats.commands(job, paths))
        return msgspec.structs.replace(launch, batch_script=self._script)

    def start(self, launch: Launch, paths: RunPaths) -> None:
        self._launch, self._paths, self._began = launch, paths, True
        script = seats.cluster_folder(paths) / "job.sh"
        seats.write_private(seats.key_file(paths), RunKey.new().text())
        seats.write_private(script, self._script)
        try:
            self._job = SlurmJob(submit(script))
        except PhalanxError as error:
            self._problem = error
            return
        self._news.append(f"submitted as job {self._job.number} of Slurm")

    def poll(self) -> dict[int, int]:
        if self._problem is not None:
            raise self._problem
        job = self._job
        if job is None:
            return {}
        self._read_notes(_READ)
        codes = self.codes()
        settled = len(codes) == len(self._launch.workers)
        doubtful = any(c < 0 or c in (STOPPED_CODE, PEER_LOST_CODE) for c in codes.values())
        calm = job.last.state == "RUNNING" and not doubtful
        state = job.look(_SELDOM if calm else _OFTEN)
        self._show(state)
        explained = settled and (not any(codes.values()) or state.state in ("COMPLETED", "FAILED"))
        if state.over and not explained:
            if settled or self._missing.over():
                raise self._ended(state.state)
            return {}
        # The job is being started again: its workers were stopped, and come back.
        again = doubtful and not state.over
        held = again and (state.state != "RUNNING" or not self._held.over())
        return {} if held else codes

    def codes(self) -> dict[int, int]:
        """The exit codes of the current attempt."""
        restarts = self._job.last.restarts if self._job else 0
        attempt = max([restarts, *(note.attempt for note in self._notes.values())])
        return {
            rank: note.code
            for rank, note in self._notes.items()
            if note.code is not None and note.attempt == attempt
        }

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        job = self._job
        if job is None or job.last.over:
            return
        self._read_notes(0.0)
        if self._notes and not self._all_ended():
            job.cancel("--signal=TERM")  # signal the workers, not the batch script
            await_end(self._all_ended, grace, hurry)
        if self._all_ended():  # the job is about to end by itself, so do not cancel it
            await_end(self._is_over, _PATIENCE, hurry)
        if not self._is_over():
            job.cancel()
            await_end(self._is_over, _AFTER_CANCEL, hurry)
        self._read_notes(0.0)

    def finish(self, say: Say, hurry: Callable[[], bool]) -> None:
        job = self._job
        if job is not None:
            if not job.last.over:
                say(f"job {job.number} may still be running: see squeue, or end it with scancel")
            job.close()
        if self._began and (job is None or job.last.over):
            seats.key_file(self._paths).unlink(missing_ok=True)

    def _all_ended(self) -> bool:
        self._read_notes(_READ)
        return len(self.codes()) == len(self._launch.workers)

    def _is_over(self) -> bool:
        return self._job is None or self._job.look(_OFTEN).over

    def _read_notes(self, every: float) -> None:
        launch, paths, now = self._launch, self._paths, time.monotonic()
        if now - self._read < every:
            return
        self._read = now
        for worker in launch.workers:
            if (note := seats.read_note(paths, worker.rank)) is not None:
                self._notes[worker.rank] = note
        attempts = {note.attempt for note in self._notes.values()}
        whole = len(self._notes) == len(self._launch.workers) and len(attempts) == 1
        if not whole or max(attempts) <= self._seen:
            return
        meeting = seats.read_meeting(paths, max(attempts))
        if meeting is not None:
            self._seen = max(attempts)
            notes = [self._notes[rank] for rank in sorted(self._notes)]
            seats.write_down_nodes(launch, self._plan, paths, notes, meeting.resume)

    def _show(self, job: JobState) -> None:
        if self._job is None or job.state in ("", "COMPLETING", self._shown):
            return
        again = ", again" if self._shown == "RUNNING" else ""
        self._shown, number = job.state, self._job.number
        if job.state == "PENDING":
            self._news.append(f"job {number} waits{again} ({job.reason or 'no reason given'})")
        elif job.state == "RUNNING":
            self._news.append(f"job {number} runs on {job.nodes}")

    def _ended(self, state: str) -> MachineError:
        """Say why a job is over although not all of its workers have ended by themselves."""
        assert self._job
        number, log = self._job.number, self._paths.logs / LOG
        if state == "TIMEOUT":
            return MachineError(
                f"Slurm ended job {number} at its time limit",
                f"Go on with more time: phalanx resume {self._paths.id} --launcher slurm:time=…",
            )
        if self._notes or state not in ("COMPLETED", "FAILED", "GONE"):
            return MachineError(
                f"Slurm ended job {number}: {state.lower().replace('_', ' ')} (log: {log})",
                f"Go on: phalanx resume {self._paths.id}",
            )
        lines = [line for line in read_tail(log, _MOST_SAID).splitlines() if line.strip()]
        if not lines:
            return MachineError(
                f"job {number} ended at once: its nodes cannot write to {self._paths.logs}",
                "Set PHALANX_RUNS to a folder that all nodes share.",
            )
        unseen = [line for line in lines if line.startswith("phalanx: ")]
        if unseen:
            return MachineError(
                unseen[0].removeprefix("phalanx: "),
                "Put the run (PHALANX_RUNS), Python and script into folders that all nodes share.",
            )
        return MachineError(
            f"job {number} ended before its workers began: {lines[-1]} (log: {log})",
            "Correct what the log says, and start it again.",
        )


UNSEEN = 66
"""The exit code of a job whose nodes lack a file of the run."""
LOG = "slurm.log"
_OURS = (
    "array", "chdir", "error", "input", "job-name", "ntasks", "open-mode", "output", "parsable",
    "test-only", "wait", "wrap",
)  # fmt: skip
_OPTION = re.compile(r"([a-z][a-z0-9-]*)(?:=([ -~]+))?")
_NEXT = re.compile(r",(?=[a-z][a-z-]*(?:=|,|$))")
"""A comma before the name of an option; others are a value's own, as in ``nodelist=n1,n2``."""


def read_options(text: str) -> list[str]:
    """Read ``partition=gpu,time=1:00:00`` as options of ``sbatch``."""
    found = []
    for part in filter(None, (word.strip() for word in _NEXT.split(text))):
        match = _OPTION.fullmatch(part)
        if match is None:
            raise InputError(
                f"sbatch has no option '{part}'",
                "For example: --launcher slurm:partition=gpu,time=1:00:00",
            )
        if match[1] in _OURS:
            instead = "Use --workers." if match[1] == "ntasks" else "Leave it out."
            raise InputError(f"'{match[1]}' is an option of sbatch that Phalanx sets", instead)
        found.append(f"--{match[1]}" if match[2] is None else f"--{match[1]}={match[2]}")
    return found


def batch_script(job: Job, paths: RunPaths) -> str:
    """Write the script, which holds no secret and does the same when Slurm starts it again."""
    folder, workers = paths.folder.absolute(), job.plan.workers
    given = read_options(job.fleet.cluster)
    requeue = [] if {"--requeue", "--no-requeue"} & set(given) else ["--requeue"]
    log = str(folder / "logs" / LOG).replace("%", "%%")
    directives = [
        f"--job-name=phalanx-{paths.id}", f"--ntasks={workers}", f"--chdir={Path.cwd()}",
        f"--output={log}", "--open-mode=append", *requeue, *given,
    ]  # fmt: skip
    needed = [folder / "launch.json", Path(sys.executable), job.script.absolute()]
    files = shlex.join(map(str, needed))
    seat = [sys.executable, "-P", "-m", "phalanx.launch.cluster.slurm_seat", str(folder)]
    look = (
        'for file; do [ -r "$file" ] || '
        f'{{ echo "phalanx: $SLURMD_NODENAME does not see $file"; exit {UNSEEN}; }}; done'
    )
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {shlex.quote(word)}" for word in directives),
            "export PYTHONUNBUFFERED=1",
            "# srun does not take this from sbatch by itself.",
            'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
            "# Every node has to see the run, the Python and the script.",
            'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES"'
            f" --ntasks-per-node=1 --input=none bash -c {shlex.quote(look)} phalanx {files}"
            f" || exit {UNSEEN}",
            f"exec srun --ntasks={workers} --kill-on-bad-exit=0 --wait=0 --input=none"
            f" {shlex.join(seat)}",
            "",
        ]
    )
