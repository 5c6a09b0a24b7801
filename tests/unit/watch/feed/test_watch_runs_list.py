"""The list of runs: newest first, in pages, with studies; no name leads out of the folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from made_runs import write_run, write_study

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.summary.summary import summarise
from phalanx.watch.feed.runs_list import RunList, UnknownRun, find_run, list_runs

HOSTILE = ["", ".", "..", "../other", "a/b", "a\\b", "a\0b", "..:..", "x" * 5000, "a:b:c", "/etc"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def finished(home: Path, name: str, **changes: object) -> RunPaths:
    paths = write_run(home, name, **changes)
    paths.summary.write_text(summarise(paths).to_json())
    return paths


def ids(found: RunList) -> list[str]:
    return [row.id for row in found.runs]


def test_the_newest_comes_first_and_pages_follow(home: Path) -> None:
    for day in range(1, 6):
        write_run(home, f"2026112{day}-000000-digits", epochs=1)
    found = list_runs(home, limit=2)
    assert ids(found) == ["20261125-000000-digits", "20261124-000000-digits"]
    assert found.more
    rest = list_runs(home, 10, before=found.runs[-1].id)
    assert ids(rest) == [f"2026112{day}-000000-digits" for day in (3, 2, 1)]
    assert not rest.more and rest.runs[0].name == "digits"


def test_a_finished_run_has_its_figures(home: Path) -> None:
    paths = finished(home, "20261120-000000-a", workers=3, machines=("m1", "m2"), strategy="async")
    row = list_runs(home).runs[0]
    summary = summarise(paths)
    assert (row.status, row.strategy, row.workers, row.machines) == (
        "done",
        "async",
        3,
        ["m1", "m2"],
    )
    assert row.accuracy == summary.test_accuracy and row.loss == summary.train_loss
    assert row.samples_per_second == summary.samples_per_second
    assert row.epochs == 3 and row.script == "train.py" and row.system == "phalanx"


def test_a_row_is_read_again_when_its_summary_is_another(home: Path) -> None:
    paths = finished(home, "20261120-000000-a")
    assert list_runs(home).runs[0].status == "done"
    summary = summarise(paths)
    summary.status = "failed, at last"
    paths.summary.write_text(summary.to_json())
    assert list_runs(home).runs[0].status == "failed, at last"


def test_a_run_without_summary_shows_its_newest_events(home: Path) -> None:
    paths = write_run(home, "20261120-000000-a", status=None)
    row = list_runs(home).runs[0]
    assert row.status == "lost" and row.epochs == 3
    assert row.accuracy is not None and row.loss is not None
    paths.detached.touch()
    row = list_runs(home).runs[0]
    assert row.status == "running" and row.samples_per_second


def test_studies_and_their_runs(home: Path) -> None:
    write_run(home, "20261120-000001-a")
    write_study(home, "20261120-000000-study", ["20261120-000001-a"])
    write_run(home / "20261120-000000-study", "inner")
    found = list_runs(home)
    assert ids(found) == ["20261120-000001-a", "20261120-000000-study:inner"]
    assert {row.study for row in found.runs} == {"20261120-000000-study"}
    assert found.studies[0].runs == ["20261120-000001-a"]
    inner = find_run(home, "20261120-000000-study:inner")
    assert inner.folder == home / "20261120-000000-study" / "inner"


def test_runs_of_other_systems(home: Path) -> None:
    paths = write_run(home, "20261120-000000-ddp")
    launch = msgspec.json.decode(paths.launch.read_bytes())
    for system in ("torch-ddp", "tf-mirrored"):
        paths.launch.write_bytes(msgspec.json.encode(launch | {"system": system}))
        assert list_runs(home).runs[0].system == system


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leads_out(home: Path, name: str) -> None:
    write_run(home.parent, "other")
    write_run(home, "a")
    with pytest.raises(UnknownRun):
        find_run(home, name)


def test_no_link_leads_out(home: Path) -> None:
    write_run(home.parent, "other")
    (home / "link").symlink_to(home.parent / "other")
    (home / "circle").symlink_to(home / "circle")
    with pytest.raises(UnknownRun):
        find_run(home, "link")
    with pytest.raises(UnknownRun):
        find_run(home, "circle")
    assert list_runs(home).runs == []


def test_names_are_kept_as_they_are(home: Path) -> None:
    name = "<script>alert(1)</script>".replace("/", "-") + "\x1b[2J"
    write_run(home, name, machines=("<b>m</b>".replace("/", "-"),))
    assert ids(list_runs(home)) == [name]
    assert find_run(home, name).id == name


def test_damaged_and_empty_folders(home: Path) -> None:
    (home / "empty").mkdir()
    for number, data in enumerate([b"", b"{", b"[" * 100_000, b'{"status": 3}', b"\xff\xfe"]):
        paths = finished(home, f"run-{number}")
        for file in (paths.summary, paths.plan):
            file.write_bytes(data)
    broken = finished(home, "run-9")
    broken.launch.write_bytes(b"{")
    os.mkfifo(finished(home, "run-8").folder / "pipe")
    found = list_runs(home)
    assert len(found.runs) == 7
    msgspec.json.encode(found)
    assert list_runs(home / "nothing").runs == []


def test_a_file_that_is_far_too_long(home: Path) -> None:
    paths = finished(home, "20261120-000000-a")
    with paths.summary.open("wb") as file:
        file.truncate(1 << 30)
    assert list_runs(home).runs[0].status == "unreadable"
