"""The progress display, from made events: what it says, and that it fits 80 columns."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import made_events
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_events import finished
from rich.console import Console

from phalanx.cli.show.progress import LiveProgress, PlainProgress, epoch_line
from phalanx.observe.events.event_types import (
    EpochDone,
    Event,
    Logged,
    Planned,
    Steps,
)
from phalanx.observe.summary.progress_state import ProgressState, trained_before

joined = partial(made_events.joined, time=10.0)


def planned(rank: int, epochs: int | None = 2, samples: int = 400) -> Planned:
    return Planned(time=10.0, rank=rank, epochs=epochs, samples=samples, batch=20)


def steps(rank: int, began: float, *, epoch: int = 0, wait: float = 0.25, **more: Any) -> Steps:
    """Ten steps of one second each, a share ``wait`` of it spent waiting."""
    times = {"compute": 1 - wait, "wait": wait / 2, "settle": wait / 2, "samples": 10} | more
    times |= {"began": [began + i for i in range(10)], "loss": [0.5] * 9 + [None]}
    return made_events.steps(rank, 10, epoch=epoch, staleness=rank, **times)


def epoch_done(rank: int, epoch: int, *, loss: float | None = 0.5, samples: int = 200) -> EpochDone:
    return EpochDone(
        time=20.0 + 10 * epoch, rank=rank, epoch=epoch, seconds=10.0, samples=samples,
        train_loss=loss, train_accuracy=0.8, rate=0.1,
    )  # fmt: skip


def logged(epoch: int, rank: int = 0, **values: float) -> Logged:
    return Logged(time=20.0, rank=rank, epoch=epoch, values=values)


def state_after(*events: Event) -> ProgressState:
    state = ProgressState()
    for event in events:
        state.take(event)
    return state


def test_the_share_done_and_the_time_to_go() -> None:
    state = state_after(
        joined(0), joined(1), planned(0), planned(1), steps(0, 10.0), steps(1, 10.0)
    )

    assert state.share == pytest.approx(200 / 800)
    assert state.elapsed == pytest.approx(10.0)
    assert state.remaining == pytest.approx(30.0)


def test_an_epoch_is_told_once_when_everyone_is_done() -> None:
    state = state_after(joined(0), joined(1), planned(0))
    state.take(epoch_done(0, 0, loss=1.0, samples=300))
    state.take(logged(0, test_accuracy=0.9))
    assert state.finished_epochs() == []

    state.take(epoch_done(1, 0, loss=0.0, samples=100))
    (line,) = state.finished_epochs()
    assert line.epoch == 1
    assert line.loss == pytest.approx(0.75), "weighted by samples"
    assert (line.accuracy, line.accuracy_name) == (0.9, "test accuracy")
    assert line.rate == pytest.approx(40.0)
    assert state.finished_epochs() == []


def test_a_worker_that_lags_may_be_the_one_that_evaluates() -> None:
    """Under asynchrony an epoch ends for the evaluator only after the evaluation."""
    state = state_after(joined(0), joined(1), planned(0))
    for epoch in range(4):
        state.take(epoch_done(0, epoch))
    assert state.finished_epochs() == []

    state.take(logged(0, rank=1, test_accuracy=0.9))
    state.take(epoch_done(1, 0))
    (line,) = state.finished_epochs()
    assert (line.epoch, line.accuracy, line.accuracy_name) == (1, 0.9, "test accuracy")

    state.take(logged(1, rank=1, test_loss=0.1))  # not yet all that is logged in an epoch
    assert state.finished_epochs() == []
    state.take(logged(1, rank=1, test_accuracy=0.95))
    state.take(epoch_done(1, 1))
    assert [line.accuracy for line in state.finished_epochs()] == [0.95]


@pytest.mark.parametrize("evaluator", [0, 1])
def test_an_evaluation_is_waited_for_whoever_does_it(evaluator: int) -> None:
    """Under asynchrony the others go on meanwhile, epochs ahead."""
    state = state_after(joined(0), joined(1), planned(0), epoch_done(evaluator, 0))
    for epoch in range(2):
        state.take(epoch_done(1 - evaluator, epoch))
    assert state.finished_epochs() == []

    state.take(logged(0, evaluator, test_accuracy=0.9))
    assert [line.accuracy for line in state.finished_epochs()] == [0.9]


def test_a_resumed_run_counts_what_was_trained_before() -> None:
    state = ProgressState()
    state.before = 400
    for event in (joined(0), planned(0, epochs=4, samples=200), epoch_done(0, 1, samples=0)):
        state.take(event)
    state.take(logged(1, test_accuracy=0.9))
    (line,) = state.finished_epochs(ended=True)
    words = "epoch 2/4  already trained, evaluated again  test accuracy 90.00 %"
    assert epoch_line(line, 4) == words

    state.take(steps(0, 10.0, epoch=2))
    assert state.share == pytest.approx(500 / 800)
    assert state.remaining == pytest.approx(3 * state.elapsed)


def test_what_was_trained_before_is_in_the_manifest(tmp_path: Path) -> None:
    assert trained_before(None) == trained_before(str(tmp_path)) == 0
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"epoch": 2, "samples": 1000, "position": 30, "more": []}')
    assert trained_before(str(tmp_path)) == 2030
    manifest.write_text("{")
    assert trained_before(str(tmp_path)) == 0
    with manifest.open("r+b") as file:
        file.truncate(1 << 30)
    assert trained_before(str(tmp_path)) == 0


@given(st.permutations([0] * 4 + [1] * 4))
def test_every_epoch_is_told_exactly_once_and_in_order(ranks: list[int]) -> None:
    state = state_after(joined(0), joined(1))
    told: list[int] = []
    epochs = [0, 0]
    for rank in ranks:
        state.take(epoch_done(rank, epochs[rank]))
        epochs[rank] += 1
        told += [line.epoch for line in state.finished_epochs()]
    told += [line.epoch for line in state.finished_epochs(ended=True)]

    assert told == [1, 2, 3, 4]


def screen(*events: Event, width: int = 80, title: str = "20250131-101500-train-async") -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    display = LiveProgress(console, title)
    for event in events:
        display.event(event)
    with console.capture() as capture:
        console.print(display.render())
    return capture.get()


def test_the_display_says_it_all_within_80_columns() -> None:
    shown = screen(
        joined(0), joined(1, machine="a-machine-with-a-very-long-name"),
        planned(0, samples=10**7), planned(1, samples=10**7),
        steps(0, 10.0, samples=123_456), steps(1, 10.0, wait=0.5), logged(0, test_accuracy=0.9731),
    )  # fmt: skip
    lines = shown.splitlines()

    assert max(map(len, lines)) <= 80
    assert "train-async" in lines[0]
    assert "test accuracy 97.31 %" in lines[0]
    assert "epoch 1/2" in lines[1]
    assert "123,466 samples/s" in lines[1]
    assert "to go" in lines[1]
    assert lines[2].split() == ["worker", "epoch", "samples/s", "loss", "waiting", "staleness"]
    assert lines[3].split() == ["0", "here", "1/2", "123,456", "0.5000", "25", "%", "0.0"]
    assert lines[4].split()[-5:] == ["10", "0.5000", "50", "%", "1.0"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    events: list[Event] = [planned(0)]
    for rank in range(40):
        events += [joined(rank, workers=40), steps(rank, 10.0)]
    shown = screen(*events, finished(0), width=width, title="a-run-with-a-long-name-" * 5)

    assert max(map(len, shown.splitlines())) <= width
    assert len(shown.splitlines()) <= 24


@pytest.mark.parametrize("live", [False, True])
def test_a_traceback_goes_to_stderr(live: bool) -> None:
    script, errors = io.StringIO(), io.StringIO()
    said, told = Console(file=script), Console(file=errors, markup=False, soft_wrap=True)
    display = LiveProgress(said, "title", told) if live else PlainProgress(said, told)
    display.failure(1, "ValueError: [red] mine")

    assert errors.getvalue() == "ValueError: [red] mine\n"
    assert script.getvalue() == ""


def test_plain_lines_keep_the_script_s_output_apart() -> None:
    script, errors = io.StringIO(), io.StringIO()
    display = PlainProgress(
        Console(file=script, markup=False, soft_wrap=True), Console(file=errors, markup=False)
    )
    for event in (joined(0, workers=1, notes=["rate ÷ 2"]), planned(0), steps(0, 10.0)):
        display.event(event)
    display.output(0, "loss [red] 0.5\n")
    display.event(epoch_done(0, 0))
    display.event(logged(0, test_accuracy=0.9))
    display.event(finished(0))

    assert script.getvalue() == "loss [red] 0.5\n"
    assert errors.getvalue().splitlines() == [
        "note: rate ÷ 2",
        "epoch 1/2  loss 0.5000  test accuracy 90.00 %  20 samples/s  0:10",
    ]
