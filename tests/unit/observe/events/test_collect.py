"""Lines of events: written on a disk that may be full, and read as they come."""

from __future__ import annotations

import errno
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import emit
from phalanx.observe.events.collect import EventTail, LineTail
from phalanx.observe.events.emit import EventWriter
from phalanx.observe.events.event_types import Finished, Logged, PhaseDone, decode, encode


def phase(rank: int, name: str) -> PhaseDone:
    return PhaseDone(time=1.0, rank=rank, phase=name, seconds=0.5)


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_lines_do_not_depend_on_how_they_were_written(chunks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        tail = LineTail(path)
        seen = tail.poll()
        for chunk in chunks:
            with path.open("ab") as file:
                file.write(chunk)
            seen += tail.poll()
        text = b"".join(chunks)
        assert seen == text.split(b"\n")[:-1]
        assert seen + tail.drain() == [
            *text.split(b"\n")[:-1],
            *filter(None, [text.split(b"\n")[-1]]),
        ]
        assert tail.drain() == []


def test_events_of_all_ranks_as_they_come(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path).make()
    tail = EventTail(paths, range(2))
    assert tail.poll() == []
    line = encode(phase(1, "read"))
    paths.events_of(1).write_bytes(line[:10])
    assert tail.poll() == []
    with paths.events_of(1).open("ab") as file:
        file.write(line[10:] + b"not json\n" + b'{"type":"unheard-of"}\n')
    paths.events_of(0).write_bytes(encode(phase(0, "start")))
    assert tail.poll() == [phase(0, "start"), phase(1, "read")]
    assert tail.poll() == []
    last = Finished(time=2.0, rank=0, status="done", bytes_sent=0, peak_memory=0)
    with paths.events_of(0).open("ab") as file:
        file.write(encode(last) + line[:5])
    assert tail.drain() == [last]


def test_a_flood_of_output_is_cut_short_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (20 << 20) + b"\nlast\n")
    tail = LineTail(path)
    lines = tail.drain()
    assert lines[-1] == b"last"
    assert sum(map(len, lines)) <= 2 << 20


def test_a_line_without_end_is_told_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (5 << 20))
    tail = LineTail(path)
    parts = [part for _ in range(10) for part in tail.poll()]
    assert sum(map(len, parts)) >= 4 << 20
    assert len(tail._partial) <= 2 << 20


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
