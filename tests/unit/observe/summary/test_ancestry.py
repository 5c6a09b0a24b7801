"""Emulation, checkpoints, and runs that go on from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_runs import write_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings, describe_emulation
from phalanx.observe.events import event_types as ev
from phalanx.observe.summary.summary import summarise


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, None),
        ({"slow": [1.0, 1.0]}, None),
        ({"slow": [1.0, 1.0, 0.25], "rate": 1e8}, "speeds 1, 1, 0.25; 100 Mbit/s"),
        ({"rate": 64e3}, "64 kbit/s"),
    ],
)
def test_what_is_not_real_is_said(settings: dict[str, Any], told: str | None) -> None:
    assert describe_emulation(RunSettings(**settings)) == told


def shifted(paths: RunPaths, rank: int, epochs: int) -> None:
    """Count this run's epochs on from ``epochs``, as a resumed one does."""
    events = []
    for event in ev.read_events(paths.events_of(rank)):
        if isinstance(event, ev.Steps | ev.EpochDone | ev.Logged):
            event = msgspec.structs.replace(event, epoch=event.epoch + epochs)
        events.append(event)
    paths.events_of(rank).write_bytes(b"".join(map(ev.encode, events)))


def saved(time: float, number: int) -> ev.Saved:
    return ev.Saved(time=time, rank=0, path=f"checkpoints/{number:06d}", epoch=number)


def make_pair(home: Path, **changes: Any) -> tuple[RunPaths, RunPaths]:
    """A run of three epochs with a checkpoint, and two more epochs from there."""
    first = write_run(home, "first", epochs=3)
    with first.events_of(0).open("ab") as file:
        file.write(ev.encode(saved(1002.5, 4)) + ev.encode(saved(1003.0, 5)))
    second = write_run(
        home, "second", epochs=2, settings={"resume": "gone"}, **changes,
        resumes="first, checkpoint 4",
    )  # fmt: skip
    for rank in range(2):
        shifted(second, rank, 3)
        again = ev.EpochDone(
            time=1002.01, rank=rank, epoch=2, seconds=0.001, samples=0, train_loss=None,
            train_accuracy=None, rate=0.05,
        )  # fmt: skip
        with second.events_of(rank).open("ab") as file:
            file.write(ev.encode(again))
    return first, second


def test_checkpoints_are_counted_and_the_last_is_named(tmp_path: Path) -> None:
    first, _ = make_pair(tmp_path)
    found = summarise(first)
    assert found.checkpoints == 2
    assert found.checkpoint is not None and found.checkpoint.path == "checkpoints/000005"
    assert found.checkpoint_seconds == {4: pytest.approx(0.5), 5: pytest.approx(1.0)}
    assert found.files == ["model.safetensors"]


def test_the_history_of_a_resumed_run_is_whole(tmp_path: Path) -> None:
    first, second = make_pair(tmp_path)
    before, found = summarise(first), summarise(second)
    assert found.resumes == "first, checkpoint 4"
    assert [row["epoch"] for row in found.history] == [0, 1, 2, 3, 4]
    assert [row.get("earlier") for row in found.history] == [1, 1, 1, None, None]
    for old, row in zip(before.history, found.history[:3], strict=True):
        assert row == {**old, "earlier": 1}
    seconds = [row["seconds"] for row in found.history]
    assert seconds == sorted(seconds) and seconds[3] > 0.5  # type: ignore[operator]
    assert found.epochs == 2, "only its own"
    assert found.metrics == {}


def test_a_grandchild_sees_both(tmp_path: Path) -> None:
    make_pair(tmp_path)
    third = write_run(
        tmp_path, "third", epochs=1, settings={"resume": "gone"}, resumes="second, checkpoint 1"
    )
    for rank in range(2):
        shifted(third, rank, 5)
    assert [row["epoch"] for row in summarise(third).history] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("resumes", ["gone, checkpoint 4", "../first, checkpoint 4", None])
def test_without_the_earlier_run_nothing_is_garbage(tmp_path: Path, resumes: str | None) -> None:
    _, second = make_pair(tmp_path)
    launch = msgspec.json.decode(second.launch.read_bytes())
    second.launch.write_bytes(msgspec.json.encode({**launch, "resumes": resumes}))
    found = summarise(second)
    assert [row["epoch"] for row in found.history] == [2, 3, 4]
    evaluated = found.history[0]
    assert evaluated["earlier"] == 1 and evaluated["samples_per_second"] is None
    assert all((row["seconds"] or 0.0) >= 0.0 for row in found.history)


def test_runs_that_claim_to_come_from_each_other_end(tmp_path: Path) -> None:
    a = write_run(tmp_path, "a", settings={"resume": "x"}, resumes="b, checkpoint 1")
    write_run(tmp_path, "b", settings={"resume": "x"}, resumes="a, checkpoint 1")
    assert [row["epoch"] for row in summarise(a).history] == [0, 1, 2]
