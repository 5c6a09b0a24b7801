"""Charts and timelines of a run's steps, from made events."""

from __future__ import annotations

import json
import math
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from made_events import finished, joined, steps
from made_history import begun, epoch_done, even, made_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import Event, encode
from phalanx.watch.feed import history as module
from phalanx.watch.feed.chart_types import Chart, Series
from phalanx.watch.feed.history import History


def read(paths: RunPaths) -> History:
    history = History(paths)
    for _ in range(1000):
        if not history.read_more() and history.share_read is None:
            return history
    raise AssertionError("there is no end")


def charts_of(
    history: History, by: str = "time", points: int = 600, **given: float
) -> dict[str, Chart]:
    charts = history.charts(by, points, given.get("first"), given.get("last"))
    text = msgspec.json.encode(charts)
    assert b"NaN" not in text and b"Infinity" not in text
    for chart in charts:
        assert len(chart.x_values) <= points
        assert chart.x_values == sorted(chart.x_values)
        for series in chart.series:
            assert len(series.values) == len(chart.x_values)
    return {chart.name: chart for chart in charts}


def series_of(chart: Chart) -> dict[str, Series]:
    return {series.name: series for series in chart.series}


def known(series: Series) -> list[float]:
    return [value for value in series.values if value is not None]


@pytest.fixture
def two(tmp_path: Path) -> RunPaths:
    """100 seconds of two workers, the second of which trains half as fast; two epochs."""
    fast: list[Event] = [even(0, 100), epoch_done(0, 150.0, 0), even(0, 100, 150.0, epoch=1)]
    slow: list[Event] = [
        even(1, 50, apart=1.0),
        epoch_done(1, 150.0, 0),
        even(1, 50, 150.0, 1.0, epoch=1),
    ]
    done: list[Event] = [epoch_done(0, 200.0, 1), finished()]
    return made_run(tmp_path, {0: [*begun(), *fast, *done], 1: [*begun(1), *slow, *done]})


@pytest.mark.parametrize("points", [5, 30, 200, 600])
def test_throughput_is_samples_by_time(two: RunPaths, points: int) -> None:
    charts = charts_of(read(two), points=points)
    found = series_of(charts["throughput"])
    assert list(found) == ["total", "worker 0", "worker 1"]
    assert found["worker 1"].rank == 1
    for name, rate in (("worker 0", 8.0), ("worker 1", 4.0), ("total", 12.0)):
        values = known(found[name])
        assert sum(values) / len(values) == pytest.approx(rate, rel=0.15)
    assert charts["throughput"].x_values[0] >= 0.0
    assert charts["throughput"].x_values[-1] <= 100.0


@pytest.mark.parametrize("points", [5, 200, 600])
def test_the_time_is_split_wholly(two: RunPaths, points: int) -> None:
    charts = charts_of(read(two), points=points)
    found = series_of(charts["time_split"])
    assert list(found) == ["input", "compute", "communicate", "wait", "update", "other"]
    for place in range(len(charts["time_split"].x_values)):
        parts = [series.values[place] for series in found.values()]
        assert sum(part for part in parts if part is not None) == pytest.approx(1.0)
    usual = {"input": 0.1, "compute": 0.5, "communicate": 0.1, "wait": 0.1, "other": 0.1}
    for name, share in usual.items():
        values = known(found[name])
        assert sum(values) / len(values) == pytest.approx(share, rel=0.15)


def test_rounds_and_settling_and_hidden_communication_are_in_the_split(tmp_path: Path) -> None:
    own = steps(0, 8, began=[100.0 + n for n in range(8)], compute=0.5, hidden=0.25, samples=4)
    met = steps(0, 8, began=[100.5 + n for n in range(8)], send=0.1, reduce=0.1, settle=0.3)
    names = ("began", "samples", "compute", "send", "reduce", "settle")
    both = {name: zip(getattr(own, name), getattr(met, name), strict=True) for name in names}
    mixed = {name: [value for pair in pairs for value in pair] for name, pairs in both.items()}
    rows = steps(0, 16, hidden=[0.25, 0.0] * 8, **mixed)  # type: ignore[arg-type]
    history = read(made_run(tmp_path, {0: [*begun(), rows]}))
    found = series_of(charts_of(history, points=8)["time_split"])
    means = {name: sum(known(one)) / len(known(one)) for name, one in found.items()}
    expected = {"compute": 0.5, "communicate": 0.2, "wait": 0.3, "other": 0.0, "input": 0.0}
    for name, share in expected.items():
        assert means[name] == pytest.approx(share, abs=0.02), name
    assert means["hidden beside"] == pytest.approx(0.25, abs=0.02)
    assert history.place(8.0, "step") == 8.0, "rounds are no steps"


def test_evaluating_is_other_time_and_has_no_room_on_the_axis_of_steps(tmp_path: Path) -> None:
    events = [*begun(), even(count=40), even(count=40, began=150.0, epoch=1)]
    history = read(made_run(tmp_path, {0: events}))
    by_time = charts_of(history, points=100)
    other = series_of(by_time["time_split"])["other"]
    rate = series_of(by_time["throughput"])["worker 0"]
    at = by_time["throughput"].x_values.index(35.5)
    assert other.values[at] == pytest.approx(1.0) and rate.values[at] == 0.0
    assert series_of(by_time["loss"])["training loss"].values[at] is None
    for by, end in (("step", 80.0), ("epoch", 2.0)):
        chart = charts_of(history, by, points=100)["throughput"]
        assert max(chart.x_values) <= end
        middle = [x for x in chart.x_values if 0.51 * end < x < 0.99 * end]
        assert len(middle) > 10
        rates = known(series_of(chart)["worker 0"])
        assert sum(rates) / len(rates) > 7.0


def test_loss_is_weighted_by_samples_and_has_a_band(tmp_path: Path) -> None:
    ones = even(0, 20, loss=[1.0, 2.0] * 10, samples=[1, 3] * 10)
    twos = even(1, 20, loss=[4.0, None] * 10, samples=4)
    history = read(made_run(tmp_path, {0: [*begun(), ones], 1: [*begun(1), twos]}))
    (series,) = charts_of(history, points=3)["loss"].series
    assert series.low is not None and series.high is not None
    assert set(series.low) == {1.0} and set(series.high) == {4.0}
    assert known(series) == pytest.approx([(1.0 + 3 * 2.0 + 4 * 4.0) / 8] * len(series.values))
    assert charts_of(history)["loss"].log


def test_losses_that_are_no_numbers_are_null(tmp_path: Path) -> None:
    losses = [1.0, None, None, None]
    bare = encode(even(count=4, apart=2.0, loss=losses))
    paths = made_run(tmp_path, {0: begun()})
    with paths.events_of(0).open("ab") as file:
        file.write(bare)
    (series,) = charts_of(read(paths), points=4)["loss"].series
    assert known(series) == [1.0] and len(series.values) >= 2
    assert json.loads(msgspec.json.encode(series))["values"][-1] is None


def test_staleness_is_drawn_if_there_is_any(two: RunPaths, tmp_path: Path) -> None:
    assert "staleness" not in charts_of(read(two))
    stale = even(0, 20, staleness=[0, 1, 5, 2] * 5)
    paths = made_run(tmp_path / "stale", {0: [*begun(), stale], 1: [*begun(1), even(1, 20)]})
    first, second = charts_of(read(paths), points=2)["staleness"].series
    assert sum(known(first)) / len(known(first)) == pytest.approx(2.0, rel=0.2)
    assert first.high is not None and max(filter(None, first.high)) == 5.0
    assert set(known(second)) == {0.0}


def test_steps_and_epochs_are_those_that_the_run_has_reached(two: RunPaths) -> None:
    history = read(two)
    by_step = charts_of(history, "step", points=50)["throughput"]
    assert by_step.x.name == "step"
    assert 0.0 <= by_step.x_values[0] < 10.0 and 190.0 < by_step.x_values[-1] <= 200.0
    by_epoch = charts_of(history, "epoch", points=50)["throughput"]
    assert 0.0 <= by_epoch.x_values[0] < 0.1 and 1.9 < by_epoch.x_values[-1] <= 2.0
    assert history.place(50.0, "epoch") == pytest.approx(1.0, abs=0.02)
    assert history.place(25.0, "step") == pytest.approx(50.0, abs=1.0)
    assert history.place(3.0, "time") == 3.0


def test_an_unfinished_epoch_is_in_part_done(tmp_path: Path) -> None:
    begin = begun(samples=400)
    first = read(made_run(tmp_path / "1", {0: [*begin, even(count=50)]}))
    assert first.place(25.0, "epoch") == pytest.approx(0.5, abs=0.02)
    second: list[Event] = [
        even(count=100),
        epoch_done(0, 150.0, 0),
        even(count=25, began=150.0, epoch=1),
    ]
    later = read(made_run(tmp_path / "2", {0: [*begin, *second]}))
    assert later.place(62.5, "epoch") == pytest.approx(1.25, abs=0.02)


@pytest.mark.parametrize(
    ("by", "first", "last"), [("time", 20, 30), ("step", 40, 60), ("epoch", 0.4, 0.6)]
)
def test_a_range_is_drawn_finely(two: RunPaths, by: str, first: float, last: float) -> None:
    history = read(two)
    chart = charts_of(history, by, points=600, first=first, last=last)["throughput"]
    room = (last - first) * 0.05
    assert first - room <= chart.x_values[0] and chart.x_values[-1] <= last + room
    assert len(chart.x_values) >= 19, "each step has a point"
    assert known(series_of(chart)["worker 0"]) == pytest.approx(
        [8.0] * len(chart.x_values), rel=0.3
    )
    for odd in ((-50.0, 1e9), (60.0, 20.0), (1e9, 1e12), (math.nan, math.inf), (1e300, -1e300)):
        charts_of(history, by, first=odd[0], last=odd[1])
        msgspec.json.encode(history.timeline(*odd))


def test_several_trainings_of_a_script_follow_each_other(tmp_path: Path) -> None:
    one = [*begun(), even(count=40), epoch_done(0, 120.0, 0), finished()]
    other = [*begun(time=140.0), even(count=40, began=140.0), epoch_done(0, 160.0, 0), finished()]
    history = read(made_run(tmp_path, {0: [*one, even(count=40, began=120.0, epoch=1), *other]}))
    assert history.place(60.0, "epoch") == pytest.approx(3.0, abs=0.01)
    assert history.place(60.0, "step") == 120.0


def test_a_lost_worker_ends_and_one_that_comes_back_is_absent_between(tmp_path: Path) -> None:
    back = [*begun(2), even(2, 20), joined(2, time=159.0), even(2, 80, 160.0)]
    events: dict[int, list[Event]] = {
        0: [*begun(), even(0, 200)], 1: [*begun(1), even(1, 60)], 2: back,
    }  # fmt: skip
    history = read(made_run(tmp_path, events))
    chart = charts_of(history, points=120)["throughput"]
    found = series_of(chart)
    at = {seconds: chart.x_values.index(seconds + 0.5) for seconds in (5, 20, 50, 70)}
    assert found["worker 1"].values[at[20]] == pytest.approx(8.0, rel=0.1)
    assert found["worker 1"].values[at[50]] is None
    assert [found["worker 2"].values[at[s]] is None for s in (5, 20, 50, 70)] == [
        False,
        True,
        True,
        False,
    ]
    assert found["total"].values[at[50]] == pytest.approx(8.0, rel=0.1)
    split = series_of(charts_of(history, points=120)["time_split"])
    assert split["other"].values[at[50]] == pytest.approx(0.1, abs=0.05)


def test_a_run_that_hardly_began_has_empty_charts(tmp_path: Path) -> None:
    nothing = History(RunPaths(tmp_path / "none"))
    assert not nothing.read_more() and nothing.share_read is None and nothing.began is None
    begins = read(made_run(tmp_path / "begins", {0: begun()}))
    assert begins.began == 100.0
    for history in (nothing, begins):
        assert all(not chart.x_values for chart in charts_of(history).values())
        assert history.timeline().ranks == []
        assert history.place(1.0, "epoch") == 0.0


def test_one_step_is_enough(tmp_path: Path) -> None:
    history = read(made_run(tmp_path, {0: [*begun(), even(count=1)]}))
    for by in ("time", "step", "epoch"):
        (value,) = known(series_of(charts_of(history, by)["throughput"])["worker 0"])
        assert value == pytest.approx(4 / 0.45)
    assert len(history.timeline().ranks[0].spans) == 5


def test_a_near_timeline_has_real_steps(two: RunPaths) -> None:
    timeline = read(two).timeline(10.2, 12.0)
    assert timeline.exact and [one.rank for one in timeline.ranks] == [0, 1]
    assert timeline.ranks[0].machine == "here"
    parts = [span for span in timeline.ranks[0].spans if span.step == 22]
    assert [span.kind for span in parts] == ["input", "compute", "send", "wait", "update"]
    assert parts[0].start == pytest.approx(10.5)
    for before, after in pairwise(parts):
        assert before.end == pytest.approx(after.start)
    assert {span.kind for span in timeline.ranks[0].spans if span.step is None} == {"other"}
    sent = json.loads(msgspec.json.encode(timeline))
    assert sent["from"] == pytest.approx(10.2) and sent["to"] == pytest.approx(12.0)


def test_a_far_timeline_has_shares_in_order(two: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEAR_STEPS", 20)
    timeline = read(two).timeline(points=20)
    assert not timeline.exact
    for worker in timeline.ranks:
        spans = worker.spans
        assert len(spans) <= 20 * len(timeline.kinds)
        compute = sum(span.end - span.start for span in spans if span.kind == "compute")
        assert compute == pytest.approx(50.0, rel=0.02)
        assert sum(span.end - span.start for span in spans) == pytest.approx(100.0, rel=0.02)
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(spans))


def test_charts_are_kept_until_something_is_added(two: RunPaths) -> None:
    history = read(two)
    assert history.charts("time", 100, None, None) is history.charts("time", 100, None, None)
    before = history.charts("time", 100, None, None)
    assert not history.read_more()
    assert history.charts("time", 100, None, None) is before
    with two.events_of(0).open("ab") as file:
        file.write(encode(even(0, 20, 200.0, epoch=2)))
    assert history.read_more() and not history.read_more()
    after = history.charts("time", 100, None, None)
    assert after[0].x_values[-1] > before[0].x_values[-1]


def test_reading_stops_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.observe.rollups.rank_rollup.BLOCK", 2000)
    many = [even(0, 10, 100.0 + 5 * n) for n in range(200)]
    history = History(made_run(tmp_path, {0: [*begun(), *many]}))
    began = time.monotonic()
    assert history.read_more(0.0)
    assert time.monotonic() - began < 1.0
    share = history.share_read
    assert share is not None and 0.0 < share < 0.5
    assert charts_of(history)["throughput"].x_values, "what was read can be drawn"
    while history.share_read is not None:
        history.read_more(0.01)
    assert history.place(math.inf, "step") == 2000.0


def test_a_saved_history_gives_the_same_charts(two: RunPaths) -> None:
    first = read(two)
    expected = first.charts("time", 50, None, None)
    first.close()
    assert two.rollups.is_dir()
    again = History(two)
    assert not again.read_more() and again.share_read is None
    assert again.charts("time", 50, None, None) == expected
