"""Emulation, checkpoints, runs that go on from others, and evidence from past runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_runs import write_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings, describe_emulation
from phalanx.observe.events import event_types as ev
from phalanx.observe.summary.past_runs import losses_of, outcomes_of, past_runs
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


SCRIPT = "print('training')\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _past(home: Path, name: str, source: str = SCRIPT, **changes: Any) -> None:
    predicted, simulated = changes.pop("predicted", None), changes.pop("simulated", False)
    paths = write_run(home, name, **changes)
    paths.source.mkdir()
    (paths.source / "train.py").write_text(source)
    summary = summarise(paths, status="done")
    summary.simulated = simulated
    if predicted:
        summary.predicted = predicted
    paths.summary.write_bytes(msgspec.json.encode(summary))


def test_runs_with_the_same_seed_are_pairs(tmp_path: Path, script: Path) -> None:
    home = tmp_path / "runs"
    for seed in (1, 2):
        _past(home, f"1-base-{seed}", strategy="allreduce", seed=seed, accuracy=0.97)
        _past(home, f"2-async-{seed}", strategy="async", seed=seed, accuracy=0.96)
    _past(home, "3-alone", strategy="async", seed=9)
    _past(home, "4-longer", strategy="async", seed=1, epochs=5, accuracy=0.5)
    _past(home, "5-other", source="print()\n", strategy="async", seed=1, accuracy=0.1)
    assert set(losses := losses_of(past_runs(home), script, [])) == {("async", 2)}
    assert losses["async", 2] == pytest.approx({1: 0.01, 2: 0.01}, abs=0.004)
    assert losses_of(past_runs(home), script, ["--depth", "3"]) == {}
    _past(home, "6-again", strategy="async", seed=2, accuracy=0.95)  # pairs of one seed are one
    assert losses_of(past_runs(home), script, [])["async", 2] == pytest.approx(
        {1: 0.01, 2: 0.02}, abs=0.004
    )


def test_real_and_simulated_runs_are_no_pairs(tmp_path: Path, script: Path) -> None:
    home = tmp_path / "runs"
    _past(home, "1-base", strategy="allreduce", seed=1, accuracy=0.97)
    _past(home, "2-async", strategy="async", seed=1, accuracy=0.90, simulated=True)
    assert losses_of(past_runs(home), script, []) == {}
    _past(home, "3-base", strategy="allreduce", seed=1, accuracy=0.95, simulated=True)
    assert set(losses_of(past_runs(home), script, [])) == {("async", 2)}


def test_other_words_for_a_strategy_are_the_same_evidence(tmp_path: Path, script: Path) -> None:
    home = tmp_path / "runs"
    _past(home, "1-base", strategy="allreduce", seed=1, accuracy=0.97)
    _past(home, "2-ps", strategy="ps", seed=1, accuracy=0.96)
    _past(home, "3-equal", strategy="switch:at=0.5:shares=equal", seed=1, accuracy=0.96)
    assert set(losses_of(past_runs(home), script, [])) == {("async", 2), ("switch:at=0.5", 2)}


def test_predicted_runs_are_outcomes(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    _past(home, "1-plain")
    _past(home, "2-told", predicted={"samples_per_second": 2000.0, "factor": 1.1, "seconds": 1.0})
    ((machines, strategy, ratio),) = outcomes_of(past_runs(home))
    told = next(r.summary for r in past_runs(home) if r.summary.predicted["seconds"])
    assert (machines, strategy) == (["here"], "allreduce")
    assert ratio == pytest.approx(2200.0 / (told.samples_per_second or 0.0))
