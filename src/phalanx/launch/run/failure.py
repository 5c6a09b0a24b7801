"""Finds the worker whose failure is the cause, and explains the failure."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.core.errors import (
    BAD_INPUT,
    MACHINE_FAILED,
    InputError,
    MachineError,
    PhalanxError,
    ScriptError,
)
from phalanx.core.files import read_tail
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.words import signal_name
from phalanx.launch.frameworks.framework import WORKER
from phalanx.launch.worker.script_runner import PEER_LOST_CODE, STOPPED_CODE

if TYPE_CHECKING:
    from phalanx.launch.launcher import Launch

_NAMES_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)(:|$)")
FREE_SOME_SPACE = "Free disk space, then continue from the last checkpoint: phalanx resume"
_FULL = 1 << 16  # bytes
_MOST_TOLD = 1 << 20  # bytes


def failures(codes: Mapping[int, int]) -> dict[int, int]:
    return {rank: code for rank, code in sorted(codes.items()) if code != 0}


def culprit(codes: Mapping[int, int]) -> int | None:
    """Return the lowest rank that failed by itself, not because of another worker.

    A rank that lost a machine comes last, because the cause may be a worker that was killed.
    """
    followers = (PEER_LOST_CODE, STOPPED_CODE)
    own = [rank for rank, code in failures(codes).items() if code not in followers]
    return min(own, key=lambda rank: (codes[rank] == MACHINE_FAILED, rank), default=None)


def is_clear(codes: Mapping[int, int]) -> bool:
    """Whether a worker failed by itself, other than by losing a machine: that may mean a worker
    whose exit code is not known yet."""
    first = culprit(codes)
    return first is not None and codes[first] != MACHINE_FAILED


def taken_along(codes: Mapping[int, int], launch: Launch) -> set[int]:
    """Return the ranks that are lost because a worker of their machine, with which they share
    memory, was killed; none if there is only one machine."""
    machines = {worker.rank: worker.machine for worker in launch.workers}
    hit = {machines[rank] for rank, code in codes.items() if code < 0}
    several = len(set(machines.values())) > 1
    return {r for r in machines if several and machines[r] in hit and codes.get(r) != 0}


def explain(rank: int, code: int, paths: RunPaths, launch: Launch | None = None) -> PhalanxError:
    """Return the failure of ``rank`` in one line that names it and its log, with a remedy."""
    told = told_by(rank, paths)
    if code == BAD_INPUT and told:
        return InputError(told[0], " ".join(told[1:]))
    if code == MACHINE_FAILED and told:
        return MachineError(told[0], " ".join(told[1:]))
    who = worker_name(rank, launch)
    log = f"(log: {paths.log_of(rank)})"
    if code > 0 and not told and _disk_is_full(paths):
        # The disk was too full for the worker to write its error.
        return MachineError(f"{who} failed: the disk is full {log}", FREE_SOME_SPACE)
    if told:
        said, hint = told, ""
        if told[1:] and told[-1].startswith("hint: "):  # advice may follow an empty line
            cut = told[::-1].index("") + 1 if "" in told[1:] else 1
            said, hint = told[:-cut], told[-1].removeprefix("hint: ")
        # An error's message may have several lines, of which the first names its kind.
        named = (line for line in reversed(said) if _NAMES_ERROR.match(line))
        return ScriptError(f"{who} failed: {next(named, said[-1])} {log}", hint)
    if code < 0:
        name = signal_name(-code)
        return ScriptError(f"{who} was killed by {name} {log}", _remedy_for(name))
    if code == STOPPED_CODE:
        return ScriptError(f"{who} was stopped by a signal, not by its controller {log}")
    return ScriptError(f"{who} exited with code {code} {log}")


def ended_early(rank: int, paths: RunPaths) -> ScriptError:
    """Return the error for a worker that left in the middle; the others would wait for ever."""
    return ScriptError(
        f"worker {rank} ended before the training was finished (log: {paths.log_of(rank)})",
        "Let every worker call fit, or run the same epochs in the loop after join.",
    )


def never_joined(script: str) -> InputError:
    return InputError(
        f"{script} never called phalanx.fit or phalanx.join, and trained on no DataLoader",
        "Call one of them, so that the workers train together (see the README).",
    )


def model_lost(first: PhalanxError, paths: RunPaths) -> MachineError:
    """Return the error for a training that ended, but whose model was lost because of ``first``."""
    return MachineError(
        f"the training ended, but its model did not arrive here: {first.cause}",
        f"Write it from the newest checkpoint: phalanx resume {paths.id}",
    )


def cannot_write(path: Path, error: OSError) -> MachineError:
    return MachineError(f"cannot write {path}: {error.strerror or error}", FREE_SOME_SPACE)


def worker_name(rank: int, launch: Launch | None) -> str:
    """Return a worker's name, with its role in another framework, and with its machine if there are
    several."""
    workers = {worker.rank: worker for worker in launch.workers} if launch else {}
    several = len({worker.machine for worker in workers.values()}) > 1
    where = f" on {workers[rank].machine}" if several else ""
    role = workers[rank].role if workers else ""
    if role not in ("", WORKER):
        return f"{role} (process {rank}{where})"
    return f"worker {rank}{where}"


def told_by(rank: int, paths: RunPaths) -> list[str]:
    """Return the lines of the traceback (or message) that ``rank`` left, if any."""
    return read_tail(paths.traceback_of(rank), _MOST_TOLD).rstrip().splitlines()


def _disk_is_full(paths: RunPaths) -> bool:
    try:
        return shutil.disk_usage(paths.folder).free < _FULL
    except OSError:
        return False


def _remedy_for(name: str) -> str:
    if name == "SIGKILL":
        return "If you did not kill it, memory ran out: use fewer workers or a smaller batch."
    return ""
