"""The event writer on a disk that is full for a while."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

from phalanx.observe.events import emit
from phalanx.observe.events.emit import EventWriter
from phalanx.observe.events.event_types import Logged, decode


class SmallDisk(io.RawIOBase):
    """Takes ``space`` bytes, and then no more."""

    def __init__(self, space: int) -> None:
        self.space, self.content = space, b""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.space:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: self.space]
        self.space -= len(taken)
        self.content += taken
        return len(taken)


def _writer(tmp_path: Path, disk: SmallDisk) -> EventWriter:
    writer = EventWriter(tmp_path / "rank-0.jsonl", 0)
    writer._stop.set()  # by hand, below
    writer._file.close()
    writer._file = disk  # type: ignore[assignment]
    return writer


def _log(writer: EventWriter, epoch: int) -> None:
    writer.emit(Logged(time=0.0, rank=0, epoch=epoch, values={}))
    writer.flush()


def test_what_did_not_fit_is_written_when_there_is_space_again(tmp_path: Path) -> None:
    disk = SmallDisk(70)
    writer = _writer(tmp_path, disk)
    for epoch in range(3):
        _log(writer, epoch)
    disk.space = 1 << 20
    _log(writer, 3)
    found = [decode(line) for line in disk.content.splitlines()]
    assert [event.epoch for event in found if isinstance(event, Logged)] == [0, 1, 2, 3]


def test_no_more_than_so_much_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "MOST_UNWRITTEN", 100)
    disk = SmallDisk(20)
    writer = _writer(tmp_path, disk)
    for epoch in range(3):
        _log(writer, epoch)
    disk.space = 1 << 20
    _log(writer, 9)
    cut, *rest = [line for line in disk.content.splitlines() if line]
    assert len(cut) == 20, "cut in half, and a line of its own"
    assert [event.epoch for line in rest if isinstance(event := decode(line), Logged)] == [9]
