"""Keeps a fit as a run on the driver: the workers' events, the summary, the weights.

What executors send becomes the content of files whose names are made here, never a path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths, new_run
from phalanx.core.settings import ESTIMATOR, RUN_FOLDER, SPARK_SYSTEM, RunSettings
from phalanx.observe.summary.run_records import LaunchRecord
from phalanx.observe.summary.run_status import DONE
from phalanx.observe.summary.summary import Summary, summarise
from phalanx.spark.messages import TrainingRequest


def keep_run(
    request: TrainingRequest, events: Sequence[bytes], began: float, weights: bytes | None
) -> tuple[Summary, Path | None]:
    """Make the run's folder; without a place for it, return its summary alone."""
    if ESTIMATOR in os.environ:  # this driver is the process of a run of ``phalanx compare``
        paths = RunPaths(Path(os.environ[RUN_FOLDER]))
        _write_events(paths, events)
        return summarise(paths), paths.folder
    try:
        paths = new_run("spark")
    except InputError as error:
        print(f"phalanx: this fit has no run folder: {error.cause}", file=sys.stderr, flush=True)
        with TemporaryDirectory(prefix="phalanx-") as name:
            return _written(RunPaths(Path(name)).make(), request, events, began), None
    if weights is not None:
        write_whole(paths.model, weights)
    return _written(paths, request, events, began), paths.folder


def _written(
    paths: RunPaths, request: TrainingRequest, events: Sequence[bytes], began: float
) -> Summary:
    settings = RunSettings(strategy=request.strategy, seed=request.seed, batch=request.batch)
    launch = LaunchRecord(
        launcher="spark", system=SPARK_SYSTEM, settings=settings, started_wall=began
    )
    write_whole(paths.launch, msgspec.json.encode(launch))
    _write_events(paths, events)
    summary = summarise(paths, status=DONE, exit_codes=[0] * len(events))
    write_whole(paths.summary, summary.to_json() + "\n")
    return summary


def _write_events(paths: RunPaths, events: Sequence[bytes]) -> None:
    for rank, found in enumerate(events):
        write_whole(paths.events_of(rank), found)
