"""What a process of ``phalanx worker`` does: the script as ``__main__``, and the run's record."""

from __future__ import annotations

import atexit
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from phalanx.cli.output import Output, write_problem
from phalanx.cli.show.result_lines import describe
from phalanx.core import context
from phalanx.core import settings as names
from phalanx.core.errors import BAD_INPUT, MACHINE_FAILED
from phalanx.core.run_folder.agreed_run import agreed_run
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.startup import run_startup
from phalanx.core.settings import RunSettings
from phalanx.core.terminal import printable
from phalanx.launch.launcher import Job
from phalanx.launch.run import external_launch as by_hand
from phalanx.launch.run.failure import never_joined, told_by
from phalanx.launch.run.open_run_folder import folder_gone
from phalanx.launch.worker.bootstrap import become_main
from phalanx.launch.worker.script_runner import leave_in_time, run_script
from phalanx.observe.events.timeline import read_ranks
from phalanx.plan.plan import Plan
from phalanx.train.start.launcher_env import Seat


@dataclass(frozen=True)
class WorkerStart:
    """One process: its seat, and what it is to run."""

    seat: Seat
    settings: RunSettings
    script: Path
    arguments: list[str]
    command: list[str]
    title: str


def train(start: WorkerStart, out: Output) -> int:
    """Run the script to its end; the exit code of the command."""
    seat = start.seat
    by_hand.stop_in_order()
    paths = _folder(f"{seat.launcher}-{seat.run}", start.title)
    record = _begin(start, paths, out) if seat.process == 0 else None
    by_hand.keep_output(paths.log_of(seat.process))
    # From here on as the bootstrap of ``phalanx run`` prepares a script.
    os.environ[names.STARTED] = repr(time.monotonic())
    # Only these steps see a rank: for the script it is settled when the workers have met.
    mine = {**os.environ, names.RANK: str(seat.process)}
    context.enter(context.WorkerContext(mine, None))
    try:
        run_startup()
    finally:
        context.leave()
    main = become_main(str(start.script), start.arguments)
    code = _judge(run_script(main, paths.traceback_of(seat.process)), seat, paths)
    if record is not None:
        record.code = code
    exit_code = by_hand.exit_code_of(code)
    if code:
        leave_in_time(exit_code, record.end if record else None)
    return exit_code


def _folder(word: str, title: str) -> RunPaths:
    told = os.environ.get(names.RUN_FOLDER)
    paths = RunPaths(Path(told)).make() if told else agreed_run(word, title)
    os.environ[names.RUN_FOLDER] = str(paths.folder.absolute())
    return paths


def _begin(start: WorkerStart, paths: RunPaths, out: Output) -> by_hand.Record:
    seat, settings = start.seat, start.settings
    record = by_hand.Record(_job(start), paths)
    record.begin()
    # Before the script: what it leaves to its exit is done when the summary is written.
    atexit.register(_tell_end, record, paths, out)
    out.note(f"run {paths.id}: {seat.processes} workers ({seat.launcher}), {settings.strategy}")
    return record


def _job(start: WorkerStart) -> Job:
    """The job as a controller would make it, except the machines, which only workers know."""
    seat, settings = start.seat, start.settings
    plan = Plan(
        strategy=settings.strategy,
        selection="all",
        machines=[],
        workers=seat.processes,
        batch=settings.batch,
        predicted={"seconds": None},
        reasons=[f"{seat.processes} processes, started by {seat.launcher}"],
    )
    return Job(
        script=start.script,
        arguments=start.arguments,
        settings=settings,
        plan=plan,
        launcher=seat.launcher,
        command=start.command,
    )


def _judge(code: int, seat: Seat, paths: RunPaths) -> int:
    """Say why the script ended as it did; one that never joined has failed too."""
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


def _tell_end(record: by_hand.Record, paths: RunPaths, out: Output) -> None:
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
