"""Whether a run is running, done, failed, stopped or lost, as its files show."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.summary.run_lock import controller_of
from phalanx.observe.summary.run_records import read_record

RUNNING, DONE, FAILED, STOPPED, LOST = "running", "done", "failed", "stopped", "lost"


class _Written(msgspec.Struct):
    status: str | None = None
    exit_codes: list[int | None] = []


def controller_alive(paths: RunPaths) -> bool:
    """Whether the process that controls this run still lives (not another one of its id)."""
    return controller_of(paths) is not None


def written_exit_codes(paths: RunPaths) -> list[int | None]:
    """Return the exit codes that an earlier summary recorded."""
    record = read_record(paths.summary, _Written)
    return list(record.exit_codes) if record else []


def status_of(paths: RunPaths, ranks: Sequence[RankLog], workers: int | None) -> str:
    """Return the status, from the earlier summary, the workers' last events and the controller."""
    record = read_record(paths.summary, _Written)
    if record and record.status and record.status != RUNNING:
        return record.status
    words = [log.finished.status for log in ranks if log.finished]
    if words and len(words) >= (workers or 1) and all(word == DONE for word in words):
        return DONE
    if controller_alive(paths) or paths.detached.exists():
        return RUNNING
    return next((word for word in (FAILED, STOPPED) if word in words), LOST)
