"""Lets the controller follow processes of other frameworks: their figures and failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.core.errors import PhalanxError, ScriptError
from phalanx.core.files import read_tail
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.frameworks.framework import SPARK, TENSORFLOW, WORKER
from phalanx.launch.run.failure import explain, worker_name
from phalanx.observe.events.figure_lines import FigureLines, Told

if TYPE_CHECKING:
    from phalanx.launch.launcher import Launch


def figures_of(launch: Launch, paths: RunPaths) -> FigureLines | None:
    """Return the reader that turns printed figures into events; ``None`` for our own workers."""
    if launch.framework is None or launch.framework.name == SPARK:
        return None  # our own workers write events; those of Spark are brought by its driver
    workers = launch.workers
    for worker in workers:  # an earlier controller's: the log is read anew
        paths.events_of(worker.rank).unlink(missing_ok=True)
    told = Told(
        machines=[worker.machine for worker in workers],
        workers=sum(worker.role == WORKER for worker in workers),
        system=launch.system,
        seed=launch.settings.seed,
        threads=[worker.threads for worker in workers],
    )
    return FigureLines(paths, told)


def counted(launch: Launch, codes: Mapping[int, int]) -> Mapping[int, int]:
    """Return the exit codes that count: TensorFlow's workers may fail when the first has ended."""
    framework = launch.framework
    if framework is None or framework.name != TENSORFLOW:
        return codes
    first = launch.decides[0]
    return {first: 0} if codes.get(first) == 0 else codes


def why_failed(
    launch: Launch, rank: int, code: int, paths: RunPaths
) -> tuple[PhalanxError, list[str]]:
    """Return a rank's error, and the lines of its traceback that are still to be shown."""
    told = last_words(paths.log_of(rank))
    if code < 0 or not told:
        return explain(rank, code, paths, launch), told
    name = worker_name(rank, launch)
    error = ScriptError(f"{name} failed: {told[-1]} (log: {paths.log_of(rank)})")
    return error, told if rank else []  # what the first worker prints is shown as it comes


def stuck_first(rank: int, paths: RunPaths, seconds: float) -> PhalanxError:
    return ScriptError(
        f"worker {rank} still ran {seconds:.0f} s after all the others had ended "
        f"(log: {paths.log_of(rank)})",
        "Let all workers run the same epochs and collectives: this one may wait for the others.",
    )


_LOOKED_AT = 1 << 16  # bytes at the end of the log
_BEGINS = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch puts this before every line


def last_words(log: Path) -> list[str]:
    """Return the lines of the last traceback, without what other threads printed after it."""
    lines = [_RANK.sub("", line) for line in read_tail(log, _LOOKED_AT).splitlines()]
    begins = [index for index, line in enumerate(lines) if line.rstrip().endswith(_BEGINS)]
    if not begins:
        return []
    told = [_BEGINS]
    for line in lines[begins[-1] + 1 :]:
        told.append(line)
        if line and not line[0].isspace():
            break  # only the exception itself is not indented
    return told
