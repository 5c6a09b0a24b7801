"""``phalanx stop``: end a run in progress in an orderly way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import MachineError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths

PATIENCE_SECONDS = 15.0
HOMEWARD_SECONDS = 600.0
"""Seconds to wait longer for runs on other machines, whose results are fetched first."""
POLL_SECONDS = 0.1
HEAR_SECONDS = 2.0


def stop(run: o.RunName = None, pool: o.OtherPool = None, json: o.Json = False) -> int:
    """Stop a run. Default: the newest one that is running."""
    from phalanx.cli.request.find_run import running

    out = Output(json)
    paths = running(run)
    if paths is None:
        out.say("nothing is running")
        out.result({"run": None, "stopped": False, "status": None})
        return 0
    result = _stop(paths, pool)
    words = "stopped" if result["stopped"] else f"was not running (status: {result['status']})"
    out.say(f"{paths.id} {words}")
    out.result(result)
    return 0


def _stop(paths: RunPaths, pool: Path | None) -> dict[str, Any]:
    import psutil

    from phalanx.cli.request.find_run import summary_of
    from phalanx.observe.summary.run_lock import controller_of

    controller = controller_of(paths)
    if controller is None and paths.detached.exists():
        return _stop_detached(paths, pool)
    if controller is not None:
        try:
            controller.terminate()
        except psutil.NoSuchProcess:
            controller = None
        except psutil.AccessDenied:
            _refuse(paths, controller.pid, "belongs to another user", "Ask its owner to stop it.")
    if controller is not None:
        _wait(paths, controller.pid)
    summary = summary_of(paths)
    stopped = controller is not None and summary.status == "stopped"
    return {"run": paths.id, "stopped": stopped, "status": summary.status}


def _stop_detached(paths: RunPaths, pool: Path | None) -> dict[str, Any]:
    """Take over as the run's controller, to stop the run and fetch its results."""
    from phalanx.cli.verbs.attach import job_of
    from phalanx.launch.launchers.attached import take_over
    from phalanx.launch.run.observer import Observer

    began = time.monotonic()

    class Stopper(Observer):
        def has_seen_enough(self) -> bool:
            """Stop after a moment: by then it is known whether the run has ended by itself."""
            return time.monotonic() - began > HEAR_SECONDS

    summary = take_over(job_of(paths, pool), paths, Stopper()).summary
    return {"run": paths.id, "stopped": summary.status == "stopped", "status": summary.status}


def _wait(paths: RunPaths, pid: int) -> None:
    from phalanx.observe.summary.run_records import LaunchRecord, read_record
    from phalanx.observe.summary.run_status import controller_alive

    launch = read_record(paths.launch, LaunchRecord)
    patience = PATIENCE_SECONDS
    if launch is not None and launch.launcher == "ssh":
        patience += HOMEWARD_SECONDS
    deadline = time.monotonic() + patience
    while controller_alive(paths):
        if time.monotonic() > deadline:
            why = f"did not stop within {patience:.0f} s"
            _refuse(paths, pid, why, f"End it: kill -KILL {pid}")
        time.sleep(POLL_SECONDS)


def _refuse(paths: RunPaths, pid: int, why: str, remedy: str) -> None:
    raise MachineError(f"the controller of {paths.id} (process {pid}) {why}", remedy)
