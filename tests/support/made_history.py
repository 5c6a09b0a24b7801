"""Folders of runs whose workers' steps were made up, for what reads their events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from made_events import joined, steps

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import EpochDone, Event, Planned, Steps, encode


def made_run(folder: Path, events: Mapping[int, Iterable[Event]]) -> RunPaths:
    paths = RunPaths(folder).make()
    for rank, found in events.items():
        paths.events_of(rank).write_bytes(b"".join(encode(event) for event in found))
    return paths


def begun(rank: int = 0, time: float = 100.0, samples: int = 1000) -> list[Event]:
    """Return how a worker begins, at the time 100."""
    return [
        joined(rank, time=time - 1.0),
        Planned(time=time, rank=rank, epochs=2, samples=samples, batch=8),
    ]


def even(
    rank: int = 0, count: int = 10, began: float = 100.0, apart: float = 0.5, **given: object
) -> Steps:
    """Return steps of equal length: half of it for computing, and a tenth each for the input, for
    sending, for waiting, for the update, and for the script between steps."""
    tenth = apart / 10
    columns: dict[str, object] = {
        "began": [began + number * apart for number in range(count)],
        "input": tenth, "compute": 5 * tenth, "send": tenth, "wait": tenth, "update": tenth,
        "samples": 4, "loss": 1.0,
    }  # fmt: skip
    return steps(rank, count, **(columns | given))  # type: ignore[arg-type]


def epoch_done(rank: int, time: float, epoch: int) -> EpochDone:
    return EpochDone(
        time=time, rank=rank, epoch=epoch, seconds=1.0, samples=1,
        train_loss=None, train_accuracy=None, rate=None,
    )  # fmt: skip
