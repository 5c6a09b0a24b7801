from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.collect import EventTail, LineTail
from phalanx.observe.events.event_types import Finished, PhaseDone, encode


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
