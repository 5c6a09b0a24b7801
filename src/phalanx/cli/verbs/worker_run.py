"""Run the script of a ``phalanx worker`` as ``__main__``, and keep the run's record."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import IO, Any

import msgspec

from phalanx.cli.output import Output, write_problem
from phalanx.cli.show.result_lines import describe
from phalanx.core import context
from phalanx.core import settings as names
from phalanx.core.errors import BAD_INPUT, DONE, MACHINE_FAILED, STOPPED, InputError, RunStopped
from phalanx.core.files import write_whole
from phalanx.core.run_folder.agreed_run import agreed_run
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.run_folder.trust import write_launch
from phalanx.core.script.startup import run_startup
from phalanx.core.settings import RunSettings
from phalanx.core.terminal import printable
from phalanx.launch.launcher import Job, describe_launch
from phalanx.launch.run.failure import never_joined, told_by
from phalanx.launch.run.open_run_folder import folder_gone, keep_source
from phalanx.launch.worker.bootstrap import become_main
from phalanx.launch.worker.script_runner import (
    PEER_LOST_CODE,
    STOPPED_CODE,
    leave_in_time,
    run_script,
)
from phalanx.observe.events.timeline import read_ranks
from phalanx.observe.summary import run_lock as claim
from phalanx.observe.summary.summary import Summary, summarise
from phalanx.plan.plan import Plan
from phalanx.train.start.launcher_env import Seat


def train(seat: Seat, job: Job, title: str, out: Output) -> int:
    """Run the script to its end; return the exit code of the command."""
    stop_in_order()
    paths = _folder(f"{seat.launcher}-{seat.run}", title)
    record = _begin(seat, job, paths, out) if seat.process == 0 else None
    keep_output(paths.log_of(seat.process))
    # From here on, prepare the script as the bootstrap of ``phalanx run`` does.
    os.environ[names.STARTED] = repr(time.monotonic())
    # Only these steps see this rank: the script gets its rank when the workers have met.
    mine = {**os.environ, names.RANK: str(seat.process)}
    context.enter(context.WorkerContext(mine, None))
    try:
        run_startup()
    finally:
        context.leave()
    main = become_main(str(job.script), job.arguments)
    code = _judge(run_script(main, paths.traceback_of(seat.process)), seat, paths)
    if record is not None:
        record.code = code
    exit_code = exit_code_of(code)
    if code:
        leave_in_time(exit_code, record.end if record else None)
    return exit_code


def _folder(word: str, title: str) -> RunPaths:
    told = os.environ.get(names.RUN_FOLDER)
    paths = RunPaths(Path(told)).make() if told else agreed_run(word, title)
    os.environ[names.RUN_FOLDER] = str(paths.folder.absolute())
    return paths


def _begin(seat: Seat, job: Job, paths: RunPaths, out: Output) -> Record:
    record = Record(job, paths)
    record.begin()
    # Registered before the script starts, so that its exit handlers run before the summary.
    atexit.register(_tell_end, record, paths, out)
    out.note(f"run {paths.id}: {seat.processes} workers ({seat.launcher}), {job.settings.strategy}")
    return record


def job_of(
    seat: Seat, settings: RunSettings, script: Path, words: list[str], command: list[str]
) -> Job:
    """Return the job as a controller would make it, without machines: only workers know these."""
    plan = Plan(
        strategy=settings.strategy,
        selection="all",
        machines=[],
        workers=seat.processes,
        batch=settings.batch,
        predicted={"seconds": None},
        reasons=[f"{seat.processes} processes, started by {seat.launcher}"],
    )
    return Job(script, words, settings, plan, seat.launcher, command)


def _judge(code: int, seat: Seat, paths: RunPaths) -> int:
    """Print why a script failed, and return its exit code; not to join is a failure too."""
    told = told_by(seat.process, paths)
    if code == 0 and not paths.folder.is_dir():
        code, told = MACHINE_FAILED, str(folder_gone(paths)).splitlines()
    if code == 0 and not any(log.joined for log in read_ranks(paths)):
        error = never_joined("the script")
        code, told = BAD_INPUT, [error.cause, error.remedy]
    if told and code in (BAD_INPUT, MACHINE_FAILED):
        write_problem(f"worker {seat.process}: {told[0]}", " ".join(told[1:]))
    elif told and code:
        print(printable("\n".join(told)), file=sys.stderr, flush=True)
    return code


def _tell_end(record: Record, paths: RunPaths, out: Output) -> None:
    try:
        summary = record.end()
    except OSError as error:
        write_problem(f"cannot write {paths.summary}: {error.strerror or error}", "")
        return
    if summary is not None:
        out.say(describe(summary))
        out.say(f"run     {paths.folder}")
        out.say(f"report  phalanx report {paths.id}")
        out.result(msgspec.to_builtins(summary))


_PATIENCE = 5.0
"""Seconds that other workers have to write their last events after process 0 is done."""
_TICK = 0.1


class Record:
    """Writes the files of one run except its events, from the run's start to its end."""

    def __init__(self, job: Job, paths: RunPaths) -> None:
        self.code: int | None = None
        """The exit code of this process's script; ``None`` until it ends."""
        self._job, self._paths = job, paths
        self._claim = ExitStack()
        self._ended = threading.Lock()

    def begin(self) -> None:
        if self._paths.launch.exists():
            raise InputError(
                f"{self._paths.folder} already contains a run",
                "End it, or set another PHALANX_RUN_ID for this one.",
            )
        write_whole(self._paths.plan, self._job.plan.to_json() + "\n")
        launch = describe_launch(self._job, self._paths, [])
        write_launch(self._paths, launch.to_json() + "\n")
        keep_source(self._job.script, self._paths)
        self._claim.enter_context(claim.hold(self._paths))

    def end(self) -> Summary | None:
        """Write and return the summary; return ``None`` if it was written before."""
        if not self._ended.acquire(blocking=False):
            return None
        status = status_of_code(self.code)
        if status == "done":
            self._await_others()
        codes = [self.code, *[None] * (self._job.plan.workers - 1)]
        summary = summarise(self._paths, status=status, exit_codes=codes)
        try:
            write_whole(self._paths.summary, summary.to_json() + "\n")
        finally:
            self._claim.close()
        return summary

    def _await_others(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if all(log.finished for log in read_ranks(self._paths) if log.joined):
                return
            time.sleep(_TICK)


def status_of_code(code: int | None) -> str:
    if code == 0:
        return "done"
    return "stopped" if code in (STOPPED_CODE, None) else "failed"


def exit_code_of(code: int) -> int:
    """Return the command's exit code for the exit code of its script."""
    known = {0: DONE, STOPPED_CODE: STOPPED, PEER_LOST_CODE: MACHINE_FAILED}
    return known.get(code, code if code in (2, MACHINE_FAILED) else 1)


def stop_in_order() -> None:
    """Make SIGTERM (by which launchers end a run) and Ctrl-C stop it as ``phalanx stop`` does."""
    signal.signal(signal.SIGTERM, _stop)
    # Ctrl-C raises SIGTERM, because training replaces that handler by its own.
    signal.signal(signal.SIGINT, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _stop(number: int, frame: FrameType | None) -> None:
    raise RunStopped


class Tee:
    """Writes the script's output to the launcher's stream and to the log of its rank."""

    def __init__(self, stream: IO[str], log: IO[str]) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        try:
            self._log.write(text)
            self._log.flush()
        except (OSError, ValueError):
            pass  # a full disk: the text is still in the launcher's stream
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_output(log: Path) -> None:
    """Write a copy of all that Python prints from now on to ``log``."""
    try:
        file = log.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError:
        return
    sys.stdout, sys.stderr = Tee(sys.stdout, file), Tee(sys.stderr, file)
