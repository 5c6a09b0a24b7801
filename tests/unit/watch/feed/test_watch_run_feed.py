"""A run as the pages see it: live, finished, failed, damaged, hostile, and of other systems."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import made_events
import msgspec
import pytest
from made_runs import CLOCK, WALL, write_run

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev
from phalanx.observe.events.notes import ALERT, FAULT, Note, encode_note
from phalanx.observe.summary.summary import summarise
from phalanx.watch.feed.run_feed import RunFeed, compare, csv_of
from phalanx.watch.feed.run_view import Mark

EVIL = "<script>alert('x')</script>\x1b]0;evil\x07 \u202e" + "long" * 100


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return write_run(tmp_path, "20261120-000000-digits", workers=2, steps=30)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new look at the status and a new judgement at every refresh."""
    for name in ("_LOOK", "_JUDGE"):
        monkeypatch.setattr(f"phalanx.watch.feed.reading.run_reader.{name}", 0.0)


def read(paths: RunPaths) -> RunFeed:
    feed = RunFeed(paths)
    catch_up(feed)
    return feed


def catch_up(feed: RunFeed) -> None:
    for _ in range(1000):
        if not feed.refresh():
            return
    raise AssertionError("it never ends")


def append(paths: RunPaths, rank: int, *events: ev.Event) -> None:
    with paths.events_of(rank).open("ab") as file:
        file.write(b"".join(ev.encode(event) for event in events))


def marks(paths: RunPaths) -> list[Mark]:
    return read(paths).view().marks


def test_a_finished_run(paths: RunPaths) -> None:
    paths.summary.write_text(summarise(paths).to_json())
    view = read(paths).view()
    assert (view.status, view.title, view.strategy) == ("done", "digits", "allreduce")
    assert (view.progress.done, view.progress.share, view.progress.epoch) == (11520, 1.0, 3)
    assert view.progress.left_seconds is None and view.building is None
    assert [(row.rank, row.state, row.machine) for row in view.workers] == [
        (0, "done", "here"),
        (1, "done", "here"),
    ]
    assert view.result["test_accuracy"] == view.result["accuracy"]
    assert view.command == ["phalanx", "run", "train.py"] and view.settings["batch"] == 128
    assert view.notes == ["learning rate 0.05"] and view.began == WALL
    msgspec.json.encode(view)


def test_charts_of_epochs_lie_on_all_axes(paths: RunPaths) -> None:
    feed = read(paths)
    for by, last in (("epoch", 3.0), ("step", 90.0)):
        charts = {chart.name: chart for chart in feed.charts(by)}
        assert {"loss", "throughput", "evaluation", "evaluation_loss", "rate"} <= charts.keys()
        assert charts["evaluation"].x_values[-1] == pytest.approx(last, rel=0.02)
    by_time = {chart.name: chart for chart in feed.charts("time")}["evaluation"]
    assert [series.name for series in by_time.series] == ["train accuracy", "test accuracy"]
    narrow = {c.name: c for c in feed.charts("epoch", 600, 1.5, 2.5)}["evaluation"]
    assert narrow.x_values == [2.0]
    with pytest.raises(InputError):
        feed.charts("<b>")


def test_epochs_are_thinned_and_the_newest_stays(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", workers=1, steps=1, epochs=100)
    chart = {c.name: c for c in read(paths).charts("epoch", 10)}["evaluation"]
    assert len(chart.x_values) <= 10 and chart.x_values[-1] == 100.0


def test_a_run_in_progress(paths: RunPaths) -> None:
    whole = paths.events_of(0).read_bytes(), paths.events_of(1).read_bytes()
    for rank, data in enumerate(whole):
        paths.events_of(rank).write_bytes(data[: len(data) // 2])
    paths.detached.touch()
    feed = read(paths)
    view = feed.view()
    assert view.status == "running" and {row.state for row in view.workers} == {"training"}
    assert 0.0 < (view.progress.share or 0.0) < 1.0
    for rank, data in enumerate(whole):
        with paths.events_of(rank).open("ab") as file:
            file.write(data[len(data) // 2 :])
    assert feed.refresh()
    paths.detached.unlink()
    catch_up(feed)
    assert feed.view().status == "done"
    assert not feed.refresh()


def test_a_failed_run_and_one_that_never_began(paths: RunPaths, tmp_path: Path) -> None:
    append(paths, 1, made_events.finished(1, "failed"))
    summary = summarise(paths, status="failed")
    paths.summary.write_text(summary.to_json())
    view = read(paths).view()
    assert view.status == "failed" and view.workers[1].state == "failed"
    assert [mark.text for mark in view.marks if mark.kind == "fault"] == ["worker 1 failed"]
    for folder in ("empty", "gone"):
        feed = read(RunPaths(tmp_path / folder))
        assert feed.view().status == "lost" and feed.view().workers == []
        assert feed.cluster().machines == [] and feed.timeline().ranks == []
        msgspec.json.encode([feed.charts(by) for by in ("time", "step", "epoch")])


def test_marks_of_events(paths: RunPaths) -> None:
    at = CLOCK + 2.2
    append(
        paths,
        0,
        ev.Balanced(time=at, rank=0, epoch=0, shares=[0.8, 0.2]),
        ev.Balanced(time=at, rank=0, epoch=0, shares=[0.8, 0.2]),
        ev.StepRefused(time=at, rank=0, epoch=0, step=7, what="the loss of worker 1", workers=[1]),
        ev.WorkerLost(time=at, rank=0, worker=1, machine="m2", address="10.0.0.2"),
        ev.WorkerLost(time=at, rank=1, worker=0, machine="m1", address="10.0.0.1"),
        ev.Saved(time=at, rank=0, path="checkpoints/000003", epoch=0),
        ev.Saved(time=at, rank=0, path="model.safetensors", epoch=0),
        ev.Switched(
            time=at, rank=0, epoch=1, at_epoch=1.5, before="allreduce", after="async", pause=0.1
        ),
    )
    found = [(mark.kind, mark.text) for mark in marks(paths)]
    assert sorted(found) == [
        ("alert", "epoch 1, step 7 skipped: the loss of worker 1 is not finite"),
        ("checkpoint", "checkpoint 000003"),
        ("fault", "worker 0 goes on without worker 1 on m2"),
        ("share", "shares 80 : 20 (by measured speed)"),
        ("switch", "switched from allreduce to async at epoch 1.50, pause 100 ms"),
    ]
    by_kind = {mark.kind: mark for mark in marks(paths)}
    assert by_kind["alert"].step == 7 and by_kind["switch"].epoch == 1.5
    assert by_kind["fault"].time == pytest.approx(0.2, abs=0.02)
    assert 0.0 < (by_kind["fault"].epoch or 0.0) < 3.0


def test_marks_of_what_was_said(paths: RunPaths) -> None:
    said = [
        Note(time=WALL - 5.0, text="connecting"),
        Note(time=WALL + 2.5, text="worker 1 hangs", kind=ALERT),
        Note(time=WALL + 2.6, text="m2 is lost", kind=FAULT),
        Note(time=WALL + 2.7, text=EVIL, kind="no kind"),
    ]
    lines = [encode_note(note) for note in said]
    paths.notes.write_text("\n".join([lines[0], "{damaged", *lines[1:]]) + "\n")
    found = marks(paths)
    assert [mark.kind for mark in found] == ["note", "alert", "fault", "note"]
    assert found[1].time == pytest.approx(0.5, abs=0.1)
    assert found[0].time < 0.0 and len(found[3].text) <= 300


def test_marks_are_bounded(paths: RunPaths) -> None:
    many = (
        ev.Saved(time=CLOCK + 3 + n, rank=0, path=f"checkpoints/{n:06}", epoch=0)
        for n in range(2000)
    )
    append(paths, 0, *many)
    found = marks(paths)
    assert len(found) == 400 and found[-1].text == "checkpoint 001999"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    paths = write_run(
        tmp_path, "run", workers=2, logged={EVIL: 0.5, "=cmd()": 1.0}, script=EVIL,
        strategy="async", command=["phalanx", EVIL],
    )  # fmt: skip
    append(paths, 1, made_events.joined(1, machine=EVIL, time=CLOCK, notes=[EVIL], device=EVIL))
    feed = read(paths)
    view = feed.view()
    assert view.script == EVIL and view.command[1] == EVIL
    metrics = {chart.name: chart for chart in feed.charts("epoch")}["metrics"]
    assert all(len(series.name) <= 80 for series in metrics.series)
    text = csv_of(metrics)
    assert "'=cmd()" in text and text.count("\r\n") == 4
    msgspec.json.encode([view, feed.cluster(), feed.timeline()])


def test_values_that_are_no_numbers(paths: RunPaths) -> None:
    line = b'{"type":"logged","time":1002.5,"rank":0,"epoch":1,"values":{"test_accuracy":null}}\n'
    with paths.events_of(0).open("ab") as file:
        file.write(line)
        file.write(line.replace(b"null", b"1e999").replace(b"test_accuracy", b"other"))
    for chart in read(paths).charts("epoch"):
        data = msgspec.json.encode(chart)
        assert b"nan" not in data.lower() and b"infinity" not in data.lower()


def test_damaged_files(paths: RunPaths) -> None:
    for path in (paths.launch, paths.plan, paths.summary, paths.notes, paths.machine("here")):
        path.write_bytes(b"[" * 50_000 + b"\xff\n{")
    with paths.events_of(1).open("r+b") as file:
        file.seek(500)
        file.write(random.Random(0).randbytes(2000))
    with paths.events_of(0).open("ab") as file:
        file.write(b'{"type":"steps","rank":0,"epoch":0,"first":0,"began":[]}\n{"type":"no"}\nx')
    os.mkfifo(paths.events / "rank-7.jsonl")
    (paths.events / "rank-1.jsonl.part").touch()
    (paths.events / "rank-x.jsonl").touch()
    feed = read(paths)
    view = feed.view()
    assert {0, 1} <= {row.rank for row in view.workers}
    msgspec.json.encode([view, feed.cluster(), feed.charts("step"), feed.log(0)])


def test_files_that_are_replaced(paths: RunPaths) -> None:
    feed = read(paths)
    assert len(feed.charts("epoch")) > 1
    data = paths.events_of(0).read_bytes()
    paths.events_of(0).write_bytes(data[: data.index(b'"epoch":1')].rpartition(b"\n")[0] + b"\n")
    catch_up(feed)
    feed.view()


def test_runs_of_other_systems(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", workers=2)
    launch = msgspec.json.decode(paths.launch.read_bytes())
    paths.launch.write_bytes(msgspec.json.encode(launch | {"system": "torch-ddp"}))
    paths.events_of(1).unlink()
    keep = (ev.Joined, ev.Planned, ev.EpochDone, ev.Logged, ev.Finished)
    events = [e for e in ev.read_events(paths.events_of(0)) if isinstance(e, keep)]
    paths.events_of(0).unlink()
    append(paths, 0, *events)
    feed = read(paths)
    view = feed.view()
    assert view.system == "torch-ddp" and view.progress.epochs == 3
    assert {"evaluation", "rate"} <= {chart.name for chart in feed.charts("epoch")}
    assert [row.rank for row in view.workers] == [0, 1]


def many_steps(rank: int, lines: int) -> Iterator[ev.Event]:
    """Half of the lines are in epoch 0; ten steps of ten samples a line."""
    for number in range(lines):
        began = CLOCK + 2.0 + 0.25 * number
        if number == lines // 2:
            yield ev.EpochDone(
                time=began, rank=rank, epoch=0, seconds=1.0, samples=50 * lines,
                train_loss=1.0, train_accuracy=None, rate=None,
            )  # fmt: skip
        yield made_events.steps(
            rank, 10, epoch=int(number >= lines // 2), first=10 * number,
            began=[began + 0.025 * i for i in range(10)], compute=0.02, wait=0.005, samples=10,
            loss=0.5,
        )  # fmt: skip


def test_of_many_steps_only_the_newest_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_run(tmp_path, "run", workers=1, epochs=2, steps=1)
    lines = 12_000
    paths.events_of(0).unlink()
    joined = made_events.joined(0, time=CLOCK, workers=1, machine="here")
    planned = ev.Planned(time=CLOCK + 2, rank=0, epochs=2, samples=50 * lines, batch=10)
    append(paths, 0, joined, planned, *many_steps(0, lines))
    assert paths.events_of(0).stat().st_size > 5 << 20
    decoded = []

    def counting(line: bytes) -> ev.Event:
        decoded.append(line)
        return msgspec.json.decode(line, type=ev.Event)

    monkeypatch.setattr("phalanx.observe.events.collect.decode", counting)
    paths.detached.touch()
    view = read(paths).view()
    assert len(decoded) < 600
    assert decoded and view.progress.done == 100 * lines
    assert view.workers[0].samples_per_second == pytest.approx(400, rel=0.05)
    assert view.workers[0].waiting == pytest.approx(0.2, rel=0.05)


def test_who_waits_and_what_it_is_worth_while_it_trains(tmp_path: Path) -> None:
    paths = write_run(
        tmp_path, "run", workers=2, machines=("m1", "m2"), steps=150, compute=0.02, slow={1: 3.0}
    )
    for rank in (0, 1):
        events = [e for e in ev.read_events(paths.events_of(rank)) if e is not None]
        paths.events_of(rank).unlink()
        append(paths, rank, *(e for e in events if not isinstance(e, ev.Finished)))
    paths.detached.touch()
    feed = read(paths)
    feed.refresh()
    waits = feed.cluster().waits
    assert (waits[0].by, waits[0].late) == ("m1", "m2")
    assert b'"for":"m2"' in msgspec.json.encode(waits[0])
    assert feed.view().worth[0].startswith("worth it? m1")


def test_refreshing_what_does_not_change_is_quick(paths: RunPaths) -> None:
    feed = read(paths)
    began = time.process_time()
    for _ in range(20):
        feed.refresh()
    assert time.process_time() - began < 1.0


def test_runs_are_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, name, strategy=s, epochs=n) for name, s, n in (
        ("20261120-000000-a", "allreduce", 3), ("20261121-000000-a", "async", 5))]  # fmt: skip
    found = compare([read(paths) for paths in runs], "epoch", 100)
    chart = {chart.name: chart for chart in found.charts}["evaluation"]
    assert [series.name for series in chart.series] == ["a (1)", "a (2)"]
    assert chart.x_values == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [value is None for value in chart.series[0].values] == [False] * 3 + [True] * 2
    assert [row.id for row in found.rows] == [paths.id for paths in runs]
    assert compare([], "epoch", 100).charts == []


def test_logs_are_text(paths: RunPaths, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1000)]
    paths.log_of(0).write_text("\n".join([*lines, "\x1b[31mred\x1b[0m \u202e<b> bell\x07"]) + "\n")
    found = read(paths).log(0, 5)
    assert found.lines[:4] == lines[-4:] and found.bytes == paths.log_of(0).stat().st_size
    assert found.lines[4].startswith("red \ufffd<b> bell") and "\x07" not in found.lines[4]
    assert len(read(paths).log(0, 10**9).lines) == 1001
    assert read(paths).log(-1).lines == read(paths).log(10**12).lines == []
    secret = tmp_path / "secret"
    secret.write_text("secret")
    paths.log_of(1).symlink_to(secret)
    assert read(paths).log(1).lines == []
    os.mkfifo(paths.log_of(2))
    assert read(paths).log(2).lines == []
