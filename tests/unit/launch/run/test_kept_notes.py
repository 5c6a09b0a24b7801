"""What the controller says is written down, and a full disk hurts nothing."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from launch_support import Recorder, run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.run.kept_notes import KeptNotes
from phalanx.launch.run.observer import Observer
from phalanx.launch.run.open_run_folder import FreeSpace
from phalanx.observe.events.notes import ALERT, FAULT, NOTE, Note, decode_notes

GIB = 1 << 30
Disk = namedtuple("Disk", "total used free")


class Told(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def notes(paths: RunPaths) -> list[Note]:
    return list(decode_notes(paths.notes.read_bytes().splitlines()))


def test_what_is_said_is_kept_by_its_kind(tmp_path: Path) -> None:
    paths, told = RunPaths(tmp_path).make(), Told()
    paths.launch.touch()
    kept = KeptNotes(paths, told)
    kept.note("connecting")
    kept.alert("worker 1 hangs")
    kept.alert("m2 is lost", FAULT)
    assert told.texts == ["connecting", "worker 1 hangs", "m2 is lost"]
    assert [note.kind for note in notes(paths)] == [NOTE, ALERT, FAULT]


def test_nothing_is_written_before_the_run(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run").make()
    kept = KeptNotes(paths, Observer())
    kept.note("connecting")
    paths.remove_if_empty()
    assert not paths.folder.exists()
    paths.make()
    kept.started(None)  # type: ignore[arg-type]
    assert [note.text for note in notes(paths)] == ["connecting"]


def test_a_full_disk_loses_notes_and_nothing_else(tmp_path: Path) -> None:
    paths, told = RunPaths(tmp_path / "gone"), Told()
    kept = KeptNotes(paths, told)
    kept.started(None)  # type: ignore[arg-type]
    kept.note("said all the same")
    assert told.texts == ["said all the same"]


def test_damaged_notes_are_left_out() -> None:
    lines = [b"", b"{", b'{"time": "x"}', b"\xff", b'{"time": 1, "text": "this", "more": 2}']
    assert [note.text for note in decode_notes(lines)] == ["this"]


@pytest.mark.parametrize(
    ("total", "free", "told"),
    [
        (100 * GIB, 0.5 * GIB, True),
        (100 * GIB, 1.5 * GIB, True),
        (100 * GIB, 3 * GIB, False),
        (10_000 * GIB, 100 * GIB, False),
        (2 * GIB, 0.1 * GIB, True),
    ],
)
def test_a_disk_that_is_nearly_full_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: float, free: float, told: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(total, total - free, free))
    now = [0.0]
    space = FreeSpace(tmp_path, lambda: now[0])
    found: list[str] = []
    for moment in range(100):
        now[0] = float(moment)
        found += space.news()
    assert len(found) == told
    assert not told or "nearly full" in found[0]


def test_a_real_run_keeps_its_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10 * GIB, 10 * GIB, 0))
    outcome, recorder, paths = run(tmp_path, "print('trained nothing')", workers=1)
    assert isinstance(recorder, Recorder) and outcome.summary is not None
    assert any("nearly full" in note.text and note.kind == ALERT for note in notes(paths))
